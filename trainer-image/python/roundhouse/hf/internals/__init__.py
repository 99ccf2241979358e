"""All that depends on the inside of transformers and accelerate. Other modules of roundhouse.hf
neither import these libraries nor name their methods."""
