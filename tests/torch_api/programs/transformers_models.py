"""Small models of transformers: loss, gradients and what `generate` says, and again from its files. Plain torch; see beside_torch.py."""

import sys
import tempfile

import numpy as np
import torch
import transformers as hf
from report import report

hf.logging.set_verbosity_error()

SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
WORDS = dict(vocab_size=90, pad_token_id=0, bos_token_id=1, eos_token_id=2)
STILL = dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
SEQ2SEQ = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
               decoder_ffn_dim=48, dropout=0, decoder_start_token_id=3)


def numbers(*shape):
    return torch.tensor(np.random.default_rng(1).standard_normal(shape).astype("f4"))


def words(rows=2, n=12):
    return torch.tensor(np.random.default_rng(0).integers(3, 90, (rows, n)))


def text():
    return dict(input_ids=words(), labels=words())


def image():
    return dict(pixel_values=numbers(2, 3, 32, 32), labels=torch.tensor([1, 3]))


MODELS = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config",
             dict(n_layer=2, n_head=2, n_embd=32, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **WORDS), text),
    "llama": ("LlamaForCausalLM", "LlamaConfig", dict(num_key_value_heads=2, **SIZES, **WORDS), text),
    "mistral": ("MistralForCausalLM", "MistralConfig", dict(num_key_value_heads=2, sliding_window=4, **SIZES, **WORDS), text),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(num_key_value_heads=2, head_dim=8, **SIZES, **WORDS), text),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(num_key_value_heads=2, num_local_experts=4, **SIZES, **WORDS), text),
    "bloom": ("BloomForCausalLM", "BloomConfig", dict(hidden_size=32, n_layer=2, n_head=4, **WORDS), text),
    "mamba": ("MambaForCausalLM", "MambaConfig", dict(hidden_size=32, num_hidden_layers=2, state_size=4, **WORDS), text),
    "bert": ("BertForMaskedLM", "BertConfig", dict(**STILL, **SIZES, **WORDS), text),
    "deberta": ("DebertaV2ForMaskedLM", "DebertaV2Config",
                dict(relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0, **STILL, **SIZES, **WORDS), text),
    "t5": ("T5ForConditionalGeneration", "T5Config",
           dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0, decoder_start_token_id=0, **WORDS), text),
    "bart": ("BartForConditionalGeneration", "BartConfig", dict(max_position_embeddings=64, **SEQ2SEQ, **WORDS), text),
    "vit": ("ViTForImageClassification", "ViTConfig", dict(image_size=32, patch_size=8, num_labels=5, **STILL, **SIZES), image),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig",
                 dict(num_labels=5, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]), image),
    "swin": ("SwinForImageClassification", "SwinConfig",
             dict(image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5, drop_path_rate=0,
                  hidden_dropout_prob=0), image),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                dict(num_mel_bins=8, max_source_positions=20, max_target_positions=20, **SEQ2SEQ, **WORDS),
                lambda: dict(input_features=numbers(2, 8, 40), labels=words(n=6))),
}
WRITERS = {"gpt2", "llama", "mistral", "mamba", "bloom", "t5", "bart"}


def run(name):
    model_name, config_name, options, batch = MODELS[name]
    model = getattr(hf, model_name)(getattr(hf, config_name)(**options))
    rng = np.random.default_rng(5)
    with torch.no_grad():
        for path, p in sorted(model.named_parameters()):
            ones = p.dim() == 1 and "norm" in path.lower() and "weight" in path
            p.copy_(torch.tensor((rng.standard_normal(tuple(p.shape)) * 0.1 + ones).astype("f4")))
    loss = model.train()(**batch()).loss
    loss.backward()
    found = {"loss": loss.item(), **{path: p.grad.norm().item() for path, p in model.named_parameters() if p.grad is not None}}
    if name in WRITERS:
        seen = {} if name in ("t5", "bart") else dict(attention_mask=torch.ones((1, 5), dtype=torch.long))
        found["words"] = model.eval().generate(words(1, 5), max_new_tokens=6, do_sample=False, **seen).tolist()
    with tempfile.TemporaryDirectory() as folder:
        model.eval().save_pretrained(folder)
        again, half = (type(model).from_pretrained(folder, dtype=dtype).eval() for dtype in ("auto", "bfloat16"))
        with torch.no_grad():
            same = torch.equal(model(**batch()).logits, again(**batch()).logits)
        found["pretrained"] = [same, str(again.dtype), str(half.dtype), str(next(half.parameters()).dtype)]
    return found


report(sys.argv[1:] or MODELS, run)
