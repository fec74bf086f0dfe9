"""Which of torch's public names are not here, and why: docs/torch_names.md, by `make torch-names`. A test holds it to the installed torch.

What is not listed is here.
"""

from __future__ import annotations

REASONS = {
    "compiler": "Parts of torch's compiler, dispatcher and benchmarks that its module happens to show; nothing in programs asks "
            "for them",
    "script": "`torch.jit.script`'s files and objects: functions run as the Python code that they are; `torch.compile` traces",
    "sparse": "Sparse tensors in blocks, sparse gradients of embeddings, and older calls; tensors of layout COO, CSR and CSC are here",
    "quantized": "Quantized numbers and products of 8 bits are not here; use float16 or bfloat16",
    "vendor": "Calls of one vendor's library or of its streams; the plain name (`conv2d`, `batch_norm`) is the same on every "
            "device",
    "layouts": "Tensors of tensors and masked tensors are not here; pad, and use `torch.masked`'s functions",
    "pipes": "Pipes of data, which torch itself gives up; use datasets and `DataLoader`",
    "library": "What binds operations to torch's dispatcher; `custom_op`, `register_fake` and `register_autograd` are here",
    "functional": "Older spellings with other arguments; use those of `torch.nn.functional` and the modules of `torch.nn`",
    "leaks": "Texts and imports that torch's module happens to show",
    "memory": "What changes a tensor's memory under it; tensors here have none of their own to change",
    "old": "What torch itself has given up: there it is an error or warns",
    "rare": "Not here yet",
}
MISSING: dict[str, dict[str, str]] = {
    "torch": {
        "compiler": "AVG AcceleratorError AggregationType AliasDb AnyType Argument ArgumentSpec AwaitType BenchmarkConfig "
            "BenchmarkExecutionStats Block BoolType BufferDict CallStack Capsule ClassType CompleteArgumentSpec ComplexType "
            "ConcreteModuleType ConcreteModuleTypeBuilder DeepCopyMemoTable DeserializationStorageContext "
            "DictType DisableTorchFunction DisableTorchFunctionSubclass DispatchKey DispatchKeySet EnumType ErrorReport "
            "ExcludeDispatchKeyGuard ExecutionPlan FatalError FileCheck FloatType FunctionSchema Future FutureType Gradient "
            "Graph GraphExecutorState IODescriptor InferredType IntType InterfaceType ListType LockingLogger ModuleDict Node "
            "NoneType NoopLogger NumberType OperatorInfo OptionalType ParameterDict PyObjectType PyTorchFileReader "
            "PyTorchFileWriter RRefType SUM SerializationStorageContext StringType SymBoolType SymIntType Tag TensorType "
            "ThroughputBenchmark TracingState TupleType Type UnionType Use Value autocast_decrement_nesting "
            "autocast_increment_nesting init_num_threads merge_type_from_type_comment "
            "set_autocast_cpu_dtype set_autocast_cpu_enabled "
            "set_autocast_dtype set_autocast_enabled set_autocast_gpu_dtype sym_constrain_range "
            "sym_constrain_range_for_size sym_fresh_size thread_safe_generator unify_type_list",
        "script": "Code CompilationUnit JITException LiteScriptModule ScriptClass ScriptClassFunction ScriptDict ScriptDictIterator "
            "ScriptDictKeyIterator ScriptFunction ScriptList ScriptListIterator ScriptMethod ScriptModule "
            "ScriptModuleSerializer ScriptObject ScriptObjectProperty StaticModule fork import_ir_module "
            "import_ir_module_from_buffer parse_ir parse_schema parse_type_comment wait",
        "vendor": "Event Stream StreamObjType batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt "
            "batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats convolution "
            "cudnn_affine_grid_generator cudnn_batch_norm cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu "
            "cudnn_convolution_transpose cudnn_grid_sampler cudnn_is_acceptable get_autocast_ipu_dtype get_autocast_xla_dtype "
            "has_lapack has_mkl has_openmp has_spectral is_autocast_ipu_enabled is_autocast_xla_enabled is_vulkan_available "
            "miopen_batch_norm miopen_convolution miopen_convolution_add_relu miopen_convolution_relu "
            "miopen_convolution_transpose miopen_ctc_loss miopen_depthwise_convolution miopen_rnn mkldnn_adaptive_avg_pool2d "
            "mkldnn_convolution mkldnn_linear_backward_weights mkldnn_max_pool2d mkldnn_max_pool3d mkldnn_rnn_layer "
            "native_norm set_autocast_ipu_dtype set_autocast_ipu_enabled set_autocast_xla_dtype set_autocast_xla_enabled",
        "functional": "adaptive_max_pool1d alpha_dropout_ binary_cross_entropy_with_logits cosine_embedding_loss ctc_loss "
            "dropout_ embedding_bag embedding_renorm_ feature_alpha_dropout_ feature_dropout feature_dropout_ gru "
            "gru_cell hinge_embedding_loss instance_norm kl_div lstm lstm_cell margin_ranking_loss poisson_nll_loss rnn_relu "
            "rnn_relu_cell rnn_tanh rnn_tanh_cell triplet_margin_loss",
        "memory": "as_strided_",
        "rare": "bit lobpcg slice_copy",
        "sparse": "ccol_indices_copy col_indices_copy crow_indices_copy hsmm hspmm indices_copy resize_as_sparse_ "
            "row_indices_copy saddmm slice_inverse smm sparse_bsc_tensor sparse_bsr_tensor sspaddmm values_copy",
        "quantized": "choose_qparams_optimized dequantize empty_quantized "
            "fbgemm_linear_fp16_weight fbgemm_linear_fp16_weight_fp32_activation "
            "fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation fbgemm_linear_quantize_weight "
            "fbgemm_pack_gemm_matrix_fp16 fbgemm_pack_quantized_matrix fused_moving_avg_obs_fake_quant int_repr "
            "q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme "
            "quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic quantized_batch_norm quantized_gru_cell "
            "quantized_lstm_cell quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d quantized_rnn_relu_cell "
            "quantized_rnn_tanh_cell",
        "old": "frobenius_norm nuclear_norm",
    },
    "torch.Tensor": {
        "memory": "as_strided_ module_load resize resize_as",
        "sparse": "resize_as_sparse_ slice_inverse smm sparse_resize_ sparse_resize_and_clear_ sspaddmm to_sparse_bsc to_sparse_bsr",
        "old": "chalf eig grad_dtype lstsq name output_nr reinforce solve storage_type symeig volatile",
        "quantized": "dequantize int_repr q_per_channel_axis q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point "
            "qscheme",
        "rare": "index",
        "vendor": "ipu mtia record_stream to_mkldnn xpu",
        "layouts": "to_padded_tensor",
    },
    "torch.nn": {
        "old": "Container NLLLoss2d",
        "rare": "CrossMapLRN2d LinearCrossEntropyOptions UninitializedBuffer",
        "leaks": "factory_kwargs",
    },
    "torch.nn.Module": {
        "vendor": "ipu mtia",
    },
    "torch.nn.functional": {
        "leaks": "BroadcastingList1 BroadcastingList2 BroadcastingList3 DType GRID_SAMPLE_INTERPOLATION_MODES "
            "GRID_SAMPLE_PADDING_MODES Tensor assert_int_or_pair boolean_dispatch handle_torch_function has_torch_function "
            "has_torch_function_unary has_torch_function_variadic reproducibility_notes sparse_support_notes tf32_notes",
        "quantized": "ScalingType SwizzleType grouped_mm scaled_grouped_mm scaled_mm",
    },
    "torch.nn.init": {},
    "torch.nn.utils": {
        "old": "clip_grad_norm",
    },
    "torch.nn.parameter": {
        "rare": "UninitializedBuffer UninitializedTensorMixin",
    },
    "torch.autograd": {
        "layouts": "NestedIOFunction",
        "rare": "enforce_grad_layout_policy set_multithreading_enabled",
    },
    "torch.optim": {
        "sparse": "SparseAdam",
        "rare": "swap_in_optimizer_params_and_state",
    },
    "torch.optim.lr_scheduler": {},
    "torch.utils.data": {
        "pipes": "DFIterDataPipe DataChunk IterDataPipe MapDataPipe argument_validation functional_datapipe "
            "guaranteed_datapipes_determinism non_deterministic runtime_validation runtime_validation_disabled",
    },
    "torch.distributions": {},
    "torch.linalg": {
        "leaks": "common_notes",
    },
    "torch.fft": {},
    "torch.special": {},
    "torch.func": {
        "rare": "debug_unwrap functionalize rearrange",
    },
    "torch.random": {
        "rare": "thread_safe_generator",
    },
    "torch.amp": {},
    "torch.sparse": {
        "sparse": "SparseSemiStructuredTensor SparseSemiStructuredTensorCUSPARSELT SparseSemiStructuredTensorCUTLASS "
            "as_sparse_gradcheck to_sparse_semi_structured",
    },
    "torch.fx": {},
    "torch.jit": {
        "script": "Attribute CompilationUnit enable_onednn_fusion export_opnames "
            "onednn_fusion_enabled set_fusion_strategy strict_fusion",
    },
    "torch.library": {
        "library": "fallthrough_kernel get_ctx get_kernel infer_schema register_autocast register_torch_dispatch "
            "register_vmap",
    },
    "torch.overrides": {
        "rare": "enable_reentrant_dispatch get_ignored_functions get_testing_overrides redispatch_function",
    },
    "torch.masked": {
        "layouts": "MaskedTensor as_masked_tensor is_masked_tensor masked_tensor",
    },
    "torch.signal.windows": {},
}
