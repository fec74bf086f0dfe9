"""torch.xpu, about the device that the user has named for a program: as `torch.cuda`."""

from tracegrad.torch_api.names.accelerator import empty_cache as empty_cache
from tracegrad.torch_api.names.cuda import Event as Event
from tracegrad.torch_api.names.cuda import Stream as Stream
from tracegrad.torch_api.names.cuda import current_device as current_device
from tracegrad.torch_api.names.cuda import current_stream as current_stream
from tracegrad.torch_api.names.cuda import device as device
from tracegrad.torch_api.names.cuda import device_count as device_count
from tracegrad.torch_api.names.cuda import get_device_name as get_device_name
from tracegrad.torch_api.names.cuda import get_device_properties as get_device_properties
from tracegrad.torch_api.names.cuda import init as init
from tracegrad.torch_api.names.cuda import is_available as is_available
from tracegrad.torch_api.names.cuda import is_bf16_supported as is_bf16_supported
from tracegrad.torch_api.names.cuda import is_initialized as is_initialized
from tracegrad.torch_api.names.cuda import max_memory_allocated as max_memory_allocated
from tracegrad.torch_api.names.cuda import memory_allocated as memory_allocated
from tracegrad.torch_api.names.cuda import set_device as set_device
from tracegrad.torch_api.names.cuda import stream as stream
from tracegrad.torch_api.names.cuda import synchronize as synchronize
