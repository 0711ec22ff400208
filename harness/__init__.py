"""Runs a model on a backend and judges it: records, store, backends, numerics, the sweep, the command line."""

import os

# Before torch is imported anywhere: else torch_tpu loads itself and may wait minutes for a metadata server.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
