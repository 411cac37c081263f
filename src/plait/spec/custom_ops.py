"""Operators that ``precision.device_specific[].custom_ops`` may replace by a device's own kernels."""

CUSTOM_OPS = ("flash_attention", "layer_norm", "softmax")
"""The registered names."""

SPELLINGS = {"LayerNorm": "layer_norm", "Softmax": "softmax", "FlashAttention": "flash_attention"}
"""Other spellings that are accepted: the names of PyTorch's modules."""
