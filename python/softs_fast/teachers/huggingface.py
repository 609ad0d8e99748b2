"""Teachers around models of Hugging Face: of causal language, and encoders."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError, GeneratorFailed
from .arguments import unknown, whole
from .forward import Call, Forward, Made
from .layout import layout_of
from .order import Order
from .outputs import Source, Wanted, as_outputs, parse_path, wanted
from .placement import device_here, device_named, dtype_named
from .pretrained import Pretrained, layers_of
from .sample_maker import SampleMaker
from .teacher import Teacher
from .texts import as_texts
from .tokens import Examples, PackedTexts, PaddedTexts

__all__ = ["CausalLMTeacher", "EncoderTeacher"]


class _HuggingFaceTeacher(Teacher):
    """See `CausalLMTeacher`."""

    _auto: Literal["AutoModel", "AutoModelForCausalLM"]
    _has_logits: bool
    #: Whether texts are packed unless the user says otherwise.
    _packs: bool

    def __init__(
        self,
        model: str | os.PathLike[str],
        texts: object,
        length: int,
        outputs: Mapping[str, Any] | Sequence[str] | str,
        *,
        packed: bool | None = None,
        column: str | None = None,
        seed: int = 0,
        repeat: bool = True,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        max_tokens: int = 8192,
    ) -> None:
        self._length = whole("length", length, 1)
        if whole("max_tokens", max_tokens, 1) < length:
            raise ConfigError(f"max_tokens must be at least length={length}, got {max_tokens}")
        self._max_rows = max_tokens // length
        self._order = Order(whole("seed", seed, 0), repeat)
        self._device = device_named(device)
        named = texts if isinstance(texts, Mapping) else {"": texts}
        if not named:
            raise ConfigError("texts are empty; need at least one")
        self._texts = {str(name): as_texts(some, column) for name, some in named.items()}
        self._is_packed = self._packs if packed is None else packed
        chosen = as_outputs(outputs)

        self._model = Pretrained(model, self._auto)  # type: ignore[arg-type]
        config, tokenizer = self._model.config(), self._model.tokenizer()
        text_config = config.get_text_config()
        _check_length(length, text_config, tokenizer)
        self._fill_id = _fill_id(tokenizer, self._is_packed)
        self._dtype = dtype_named(dtype) or dtype_named(getattr(config, "dtype", None)) or "float32"
        n_layers = text_config.num_hidden_layers
        skeleton = self._model.skeleton(config, self._dtype)
        source_of = self._sources(skeleton, n_layers)
        self._wanted = tuple(
            wanted(name, output, source_of(output.source)) for name, output in chosen.items()
        )
        self._n_layers = n_layers if any(one.source.of_layer for one in self._wanted) else None
        self.batch_config = layout_of(chosen, self._wanted, lambda some: self._on_meta(skeleton, some))

    def _load(self) -> SampleMaker:
        device = device_here(self._device)
        tokenizer = self._model.tokenizer()
        model = self._model.weights(self._dtype, device)
        return SampleMaker(
            Forward(model, _call(with_mask=not self._is_packed), self._wanted, device),
            {name: self._examples(tokenizer, some.open()) for name, some in self._texts.items()},
            self._order,
            max_rows=self._max_rows,
            n_layers=self._n_layers,
            device=device,
        )

    def _examples(self, tokenizer: Any, texts: Sequence[str]) -> Examples:
        kind = PackedTexts if self._is_packed else PaddedTexts
        return kind(tokenizer, texts, self._length, self._fill_id)

    def _on_meta(self, skeleton: nn.Module, some: Sequence[Wanted]) -> Mapping[str, Made]:
        device = torch.device("meta")
        ids = torch.zeros(1, self._length, dtype=torch.int64, device=device)
        fields = {"ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}
        layer = 0 if self._n_layers is not None else None
        try:
            return Forward(skeleton, _call(with_mask=True), some, device)(fields, layer)
        except GeneratorFailed:
            raise
        except RuntimeError:
            # Encoders look at elements of a mask even so, and decoders at those of a mask that they make.
            return Forward(skeleton, _call(with_mask=False), some, device)(fields, layer)

    def _sources(self, skeleton: nn.Module, n_layers: int) -> Callable[[str], Source]:
        """Return a function that finds what a name means in the model."""
        paths = [path for path, _ in skeleton.named_modules() if path]
        lists = layers_of(skeleton, n_layers)
        names = ["ids", "mask", *["logits"] * self._has_logits]
        if len(lists) == 1:
            names += ["layer.input", "layer.output", *(f"hidden.{i}" for i in range(n_layers + 1))]

        def source_of(name: str) -> Source:
            source = parse_path(name)
            if source is not None:
                if source.path not in paths:
                    raise unknown(f"module in {name!r}:", source.path, paths)
                return source
            if len(lists) != 1 and re.match(r"hidden\.|layer\.", name):
                raise ConfigError(
                    f"output {name!r}: {self._model.name} needs one list of {n_layers} layers, has {lists}; name "
                    "modules instead: outputs[PATH]"
                )
            if name not in names:
                raise unknown("output", name, [*names, "inputs[PATH]", "outputs[PATH]"])
            if name in ("ids", "mask"):
                return Source("field", name)
            if name == "logits":
                return Source("result")
            (layers,) = lists
            if name.startswith("layer."):
                return Source("inputs" if name == "layer.input" else "outputs", layers, of_layer=True)
            number = int(name.removeprefix("hidden."))
            return Source("outputs", f"{layers}.{number - 1}") if number else Source("inputs", f"{layers}.0")

        return source_of


class CausalLMTeacher(_HuggingFaceTeacher):
    """A causal language model of Hugging Face that makes samples of texts.

        teacher = CausalLMTeacher("gpt2", "corpus.txt", length=128, outputs={"logits": TopK(64)})

        if __name__ == "__main__":
            with sf.Fleet(teacher.worker, n_workers=2) as fleet, fleet.student(64, teacher.batch_config) as client:
                ...

    The constructor reads configuration and tokenizer and checks all arguments; `worker` and `supplier` load the
    weights. Sample `sequence` of a rank is always of the same text, whichever worker makes it: each pass through the
    texts has a permutation of its own, for each rank and seed. Its values may differ in the last bits between batches
    of other sizes, as kernels sum in another order; with ``max_tokens=length`` samples are computed one by one, to the
    same bits.

    | output | tensor of a sample |
    |---|---|
    | `ids` | int64 [length], the tokens |
    | `mask` | bool [length], False for padding |
    | `logits` | [length, vocabulary]; with the codec `TopK` the largest ones, chosen on the model's device |
    | `hidden.I` | [length, hidden], after I layers, before a last norm; `hidden.0` is what the first layer takes |
    | `layer.input`, `layer.output` | [length, hidden], of the layer that model_cfg names: {"layer": 3} |
    | `inputs[PATH]`, `outputs[PATH]` | the first tensor that a module takes or returns |

    Without `logits` a forward ends after the last module that is wanted.

    Args:
        model: Name on Hugging Face, or a folder that `save_pretrained` has written, with a tokenizer.
        texts: The path of a file, of which each line is a text; or a sequence of texts; or with `column` a datasets
            object, or anything with a length of which each element is a mapping; or a mapping of names to these, of
            which model_cfg names one: {"texts": "held_out"}. Workers get them by pickling, a file by its path.
        length: Tokens of a sample.
        outputs: Names, or {name of a tensor: codec, None, or `Output`}.
        packed: Samples are blocks of all texts, end to end with an EOS after each; every worker tokenises all texts
            when it starts. Otherwise a sample is one text, cut or padded on the right. Default: packed.
        column: Key of the text in an element of `texts`.
        seed: Seed of the order of the texts.
        repeat: Whether another pass begins when all texts were used. Otherwise later samples fail: `GeneratorFailed`
            is raised where the student waits. A worker then makes one sample with each call.
        dtype: Dtype of the weights; default: that of the model's configuration, or float32.
        device: Device of the model; default: the first GPU that the worker sees, or else the CPU.
        max_tokens: Tokens, padding included, that go through the model at once.

    Raises:
        ConfigError: an argument is malformed, or does not fit the model; the text says what to give.
        ImportError: transformers is not installed.
    """

    _auto = "AutoModelForCausalLM"
    _has_logits = True
    _packs = True


class EncoderTeacher(_HuggingFaceTeacher):
    """A model of Hugging Face without a head, such as BERT, that makes samples of texts.

    As `CausalLMTeacher`, except that there are no `logits`, and that samples are single texts by default.

    Args:
        model, texts, length, outputs, column, seed, repeat, dtype, device, max_tokens: see `CausalLMTeacher`.
        packed: see there, but default: not packed. A tokenizer without EOS has its SEP between texts.

    Raises:
        ConfigError, ImportError: see `CausalLMTeacher`.
    """

    _auto = "AutoModel"
    _has_logits = False
    _packs = False


def _call(*, with_mask: bool) -> Call:
    def call(run: Callable[..., Any], fields: Mapping[str, Tensor]) -> Any:
        mask = {"attention_mask": fields["mask"].long()} if with_mask else {}
        returned = run(input_ids=fields["ids"], **mask)
        return getattr(returned, "logits", None)

    return call


def _check_length(length: int, config: Any, tokenizer: Any) -> None:
    """Check that the model has as many positions; a tokenizer without a limit names a very large number."""
    limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
    limit = min((one for one in limits if isinstance(one, int)), default=length)
    if length > limit:
        raise ConfigError(f"length must be at most {limit}, the positions of the model; got {length}")


def _fill_id(tokenizer: Any, packed: bool) -> int:
    """Return the token that follows each text of a block, or that pads a text.

    Raises:
        ConfigError: the tokenizer has none.
    """
    names = ("eos_token_id", "sep_token_id") if packed else ("pad_token_id", "eos_token_id")
    for name in names:
        number = getattr(tokenizer, name, None)
        if number is not None:
            return int(number)
    if packed:
        raise ConfigError(
            "the tokenizer has no EOS and no SEP token to put between packed texts; use packed=False, or set its eos_token"
        )
    raise ConfigError(
        "the tokenizer has no padding token, and no EOS token to pad with; use packed=True, or set its pad_token"
    )
