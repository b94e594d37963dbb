"""The character language model as a task: cross-entropy of every next character, in nats and in bits."""

import math
from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from triptych.attention.naive import upcast
from triptych.data.batches import Probe, TextBatch
from triptych.data.characters import CharacterData
from triptych.data.tokenizers import UNKNOWN_ID
from triptych.errors import UserError
from triptych.models.charlm import CharLM
from triptych.models.sampling import check_options, generate
from triptych.tasks.base import Task


class CharLMTask(Task):
    """Predict each next character. ``val/loss`` is in nats per character, ``val/bits_per_character`` in bits."""

    name = "charlm"
    metrics = ("val/loss", "val/bits_per_character")
    data_class, model_classes = CharacterData, (CharLM,)
    model: CharLM

    def logits(self, model: Callable[..., Tensor], batch: TextBatch) -> Tensor:
        """Logits B T V of every next character."""
        return model(batch.tokens)

    def loss(self, logits: Tensor, batch: TextBatch) -> tuple[Tensor, int]:
        """Mean cross-entropy in nats per character, over all characters of the batch."""
        loss = F.cross_entropy(upcast(logits).flatten(0, 1), batch.targets.flatten())
        return loss, batch.targets.numel()

    def log_split(self, split: str) -> None:
        nats = self.mean_loss(split).compute()
        self.log(f"{split}/bits_per_character", nats / math.log(2))
        super().log_split(split)

    def streams(self, site: str, kind: Literal["self", "cross"]) -> tuple[str, str]:
        """Queries and keys are the same text."""
        return "text", "text"

    def inputs(self, data: CharacterData, given: str) -> list[Probe]:
        """The text as the model reads it."""
        return [data.written(given)]

    def sample(self, data: CharacterData, *, length: int, temperature: float) -> tuple[str, str]:
        """A prompt from the validation text and ``length`` characters that continue it, the same draw every time."""
        prompt = data.prompt()
        text = self.predict(data, prompt, length=length, temperature=temperature, top_k=None, top_p=None, seed=0)
        return prompt, "".join(text)

    def check_sample(self, *, length: int, temperature: float) -> None:  # type: ignore[override]
        """Raise UserError naming the option that is out of range."""
        try:
            check_options(length=length, temperature=temperature, top_k=None, top_p=None)
        except UserError as error:
            raise UserError(f"sample.{error}") from error

    def echo(self, data: CharacterData, given: str) -> str:
        """The input as the model reads it: a character that it never saw shows as what replaces it."""
        return data.tokenizer.decode(data.tokenizer.encode(given))

    def predict(
        self,
        data: CharacterData,
        given: str,
        *,
        length: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        seed: int | None,
    ) -> Iterator[str]:
        """Continue ``given`` character by character; see ``models.sampling.generate``. Without a seed, drawn anew."""
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        ids = data.tokenizer.encode(given)
        for token in generate(
            self.model,
            ids,
            length=length,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            generator=generator,
            forbidden=(UNKNOWN_ID,),
        ):
            yield data.tokenizer.decode([token])
