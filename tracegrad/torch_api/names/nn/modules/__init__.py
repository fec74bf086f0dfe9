"""torch.nn.modules: the base classes that programs ask for by torch's private names, one module for all of torch's."""

from __future__ import annotations

import tracegrad as tg
from tracegrad.nn.module import LoadResult
from tracegrad.nn.modules.conv import _ConvTranspose
from tracegrad.nn.modules.conv import _PlainConv as _ConvNd
from tracegrad.nn.modules.dropout import _Dropout as _DropoutNd
from tracegrad.nn.modules.lazy import LazyModuleMixin
from tracegrad.nn.modules.linear import NonDynamicallyQuantizableLinear
from tracegrad.nn.modules.loss import _Loss
from tracegrad.nn.modules.normalization import _BatchNorm, _InstanceNorm
from tracegrad.nn.modules.normalization import _Tracking as _NormBase
from tracegrad.nn.modules.pooling import _AvgPool as _AvgPoolNd
from tracegrad.nn.modules.pooling import _MaxPool as _MaxPoolNd
from tracegrad.nn.modules.recurrent import _Cell as RNNCellBase
from tracegrad.nn.modules.recurrent import _Recurrent as RNNBase

__all__ = ["LazyModuleMixin", "NonDynamicallyQuantizableLinear", "RNNBase", "RNNCellBase", "_AvgPoolNd", "_BatchNorm", "_ConvNd",
           "_ConvTransposeNd", "_DropoutNd", "_IncompatibleKeys", "_InstanceNorm", "_Loss", "_MaxPoolNd", "_NormBase", "_WeightedLoss"]

_ConvTransposeNd, _IncompatibleKeys, _WeightedLoss = _ConvTranspose, LoadResult, _Loss
Module = tg.nn.Module

_EXTRA_STATE_KEY_SUFFIX = "_extra_state"
