"""torch._higher_order_ops."""

from tracegrad.torch_api.names._higher_order_ops.associative_scan import associative_scan as associative_scan
from tracegrad.torch_api.names._higher_order_ops.control import cond as cond
from tracegrad.torch_api.names._higher_order_ops.control import map as map
from tracegrad.torch_api.names._higher_order_ops.control import scan as scan
from tracegrad.torch_api.names._higher_order_ops.control import while_loop as while_loop
