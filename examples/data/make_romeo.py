#!/usr/bin/env python3
"""Writes examples/data/romeo from a text of the play: a speech per line, and a tokenizer for them.

usage: examples/data/make_romeo.py PLAY.txt

In PLAY.txt empty lines separate the speeches; the first line of each is its speaker and a colon.
The script needs the package tokenizers (0.22).
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
END = "<|endoftext|>"
target = pathlib.Path(__file__).resolve().parent / "romeo"

blocks = pathlib.Path(sys.argv[1]).read_text().split("\n\n")
speeches = [" ".join(block.split()) for block in blocks if block.strip()]
# The last tenth of the play is the test split.
num_train = len(speeches) * 9 // 10
target.mkdir(exist_ok=True)
for name, part in (("train", speeches[:num_train]), ("val", speeches[num_train:])):
    (target / f"{name}.txt").write_text("\n".join(part) + "\n")

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(
    vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
)
tokenizer.train_from_iterator(speeches[:num_train], trainer)
compact = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
(target / "tokenizer.json").write_text(compact + "\n")
