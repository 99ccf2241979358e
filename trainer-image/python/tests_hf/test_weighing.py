"""Losses that are means over labels, of models that get no number of items: each label counts the
same, whatever the passes are."""

import warnings

import pytest
import torch
import transformers
from roundhouse.hf import Trainer
from small_trainer import arguments

torch.manual_seed(1)
WORDS = torch.randint(3, 16, (8, 10))
# Sequences of different lengths, so samples have different numbers of labels.
LENGTHS = [3, 10, 2, 7, 9, 4, 10, 5]


def samples(lengths=LENGTHS):
    labels = WORDS.clone()
    for row, length in enumerate(lengths):
        labels[row, length:] = -100
    return [{"input_ids": words, "labels": wanted} for words, wanted in zip(WORDS, labels)]


class Tagger(torch.nn.Module):
    """Classifies tokens, or predicts the next ones. Its forward takes no other arguments."""

    def __init__(self, shifts=False):
        super().__init__()
        self.shifts = shifts
        self.embedding = torch.nn.Embedding(16, 8, dtype=torch.float64)
        self.head = torch.nn.Linear(8, 16, dtype=torch.float64)

    def forward(self, input_ids, labels=None):
        scores = self.head(self.embedding(input_ids))
        pairs = (scores[:, :-1], labels[:, 1:]) if self.shifts else (scores, labels)
        return {"loss": torch.nn.functional.cross_entropy(*(part.flatten(0, 1) for part in pairs)), "logits": scores}


class NextWord(Tagger):
    """Accepts the number of items, and ignores it."""

    def forward(self, input_ids, labels=None, **_):
        return super().forward(input_ids, labels)


def esm():
    small = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "token_dropout": False}
    config = transformers.EsmConfig(**small, **no_dropout, max_position_embeddings=14, pad_token_id=1, mask_token_id=2)
    return transformers.EsmForMaskedLM(config)


def qwen_vl():
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    small = {"vocab_size": 24, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    images = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 16, "fullatt_block_indexes": [0]}
    tokens = {"image_token_id": 18, "video_token_id": 19, "vision_start_token_id": 17, "vision_end_token_id": 16}
    config = transformers.Qwen2_5_VLConfig(text_config={**small, "num_key_value_heads": 2, **rope}, vision_config=images, **tokens)
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    for weight in model.model.visual.parameters():
        weight.requires_grad_(False)
    return model


def trained(kind, directory, make, size, data, **options):
    """The weights after a training with batches of 8, and how far they have moved."""
    torch.manual_seed(4)
    model = make()
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    args = arguments(directory, per_device_train_batch_size=size, max_grad_norm=0)
    kind(model=model, args=args, train_dataset=data, **options).train()
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return after, float((after - before).norm())


def check(directory, make, size, tolerance, data=None):
    data = data or samples()
    wanted, moved = trained(transformers.Trainer, directory, make, 8, data)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "roundhouse.hf: the loss of a pass")
        found, _ = trained(Trainer, directory, make, size, data, global_batch_size=8)
    assert float((wanted - found).norm()) <= tolerance * moved


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("make", [Tagger, lambda: Tagger(shifts=True), lambda: NextWord(shifts=True)])
def test_labels_of_own_models_count_the_same(tmp_path, make, size):
    check(tmp_path, make, size, 1e-12)


# Their losses compute in 32 bits.
@pytest.mark.parametrize("make", [esm, qwen_vl])
def test_labels_of_models_without_the_number_count_the_same(tmp_path, make):
    check(tmp_path, make, 3, 1e-4)


class Divided(Tagger):
    """Divides the sum of its losses by the number of items."""

    def forward(self, input_ids, labels=None, num_items_in_batch=None, **_):
        found = super().forward(input_ids, labels)
        if num_items_in_batch is not None:
            found["loss"] = torch.nn.functional.cross_entropy(found["logits"].flatten(0, 1), labels.flatten(), reduction="sum")
            found["loss"] = found["loss"] / num_items_in_batch
        return found


# The mean over no labels is not a number.
@pytest.mark.parametrize("lengths", [[0, *LENGTHS[1:]], [*LENGTHS[:-1], 0]])
@pytest.mark.parametrize("make", [Tagger, Divided])
def test_pass_without_labels_counts_nothing(tmp_path, make, lengths):
    check(tmp_path, make, 1, 1e-12, samples(lengths))


class Summed(Tagger):
    def forward(self, input_ids, labels=None):
        found = super().forward(input_ids, labels)
        return {**found, "loss": found["loss"] * len(labels)}


class PerClass(Tagger):
    """Weighs the classes."""

    def forward(self, input_ids, labels=None):
        scores = super().forward(input_ids, labels)["logits"]
        weight = torch.arange(16, dtype=torch.float64) ** 4
        return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), weight=weight)}


class Contrastive(Tagger):
    """Compares each sample with the others of its pass."""

    def forward(self, input_ids, labels=None):
        points = self.embedding(input_ids).mean(1)
        return {"loss": torch.nn.functional.cross_entropy(points @ points.T, torch.arange(len(points)))}


@pytest.mark.parametrize("make", [Summed, PerClass, Contrastive])
def test_loss_that_is_no_mean_is_warned_of(tmp_path, make):
    with pytest.warns(UserWarning, match="it is no mean over them, so the weights depend on the number of workers"):
        trained(Trainer, tmp_path, make, 8, samples(), global_batch_size=8)
