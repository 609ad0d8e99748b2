"""Teachers that are ready to use: a frozen model, what it is given, and the worker or supplier that runs it.

    teacher = CausalLMTeacher("gpt2", "corpus.txt", length=128, outputs={"logits": TopK(64)})

    if __name__ == "__main__":
        with sf.Fleet(teacher.worker, n_workers=2) as fleet, fleet.student(64, teacher.batch_config) as client:
            ...

This package needs torch. transformers is imported when a teacher of Hugging Face is made.
"""

from .huggingface import CausalLMTeacher, EncoderTeacher
from .outputs import Output
from .teacher import Teacher
from .torch_module import TorchTeacher

__all__ = ["CausalLMTeacher", "EncoderTeacher", "Output", "Teacher", "TorchTeacher"]
