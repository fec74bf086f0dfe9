"""An operator set of ONNX (torch.onnx.symbolic_opset11 and the others), without operators."""
