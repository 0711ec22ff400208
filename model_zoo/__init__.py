"""Where models come from. Knows models, knows nothing of backends."""

import os

# Before torch is imported anywhere: else torch_tpu loads itself and may wait minutes for a metadata server.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
