"""Inputs for any forward: by signature, config and the conventions of a modality, from one seeded generator.

>>> import torch
>>> image_batch(8, torch.Generator().manual_seed(0)).shape
torch.Size([2, 3, 8, 8])
"""

from model_zoo.inputs.draw import Draw, image_batch, token_batch
from model_zoo.inputs.forward import Inputs, inputs_for

__all__ = ["Draw", "Inputs", "image_batch", "inputs_for", "token_batch"]
