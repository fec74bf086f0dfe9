"""Layers and losses, with torch's names, arguments, defaults and initial values: a file for each family."""

from __future__ import annotations

from tracegrad.nn.modules.activation import ELU, GELU, LeakyReLU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from tracegrad.nn.modules.attention import MultiheadAttention
from tracegrad.nn.modules.conv import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from tracegrad.nn.modules.dropout import Dropout
from tracegrad.nn.modules.linear import Identity, Linear
from tracegrad.nn.modules.loss import BCEWithLogitsLoss, CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
from tracegrad.nn.modules.normalization import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm
from tracegrad.nn.modules.pooling import AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d
from tracegrad.nn.modules.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from tracegrad.nn.modules.shape import Flatten
from tracegrad.nn.modules.sparse import Embedding
from tracegrad.nn.modules.transformer import (
    Transformer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

__all__ = [
    "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "BCEWithLogitsLoss", "BatchNorm1d", "BatchNorm2d", "Conv1d", "Conv2d",
    "ConvTranspose1d", "ConvTranspose2d", "CrossEntropyLoss", "Dropout", "ELU", "Embedding", "Flatten", "GELU", "GRU", "GRUCell",
    "GroupNorm", "Identity", "L1Loss", "LSTM", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax", "MSELoss", "MaxPool1d",
    "MaxPool2d", "MultiheadAttention", "NLLLoss", "RNN", "RNNCell", "ReLU", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh",
    "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder", "TransformerEncoderLayer",
]
