"""What replaces methods of transformers and accelerate. Other modules of roundhouse.hf do not
import these libraries."""
