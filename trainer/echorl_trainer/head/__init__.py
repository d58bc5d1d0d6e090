"""The output head: logprobs and entropies of chosen tokens, and their loss, without ever holding all logits.

``operator`` is what autograd sees. It takes hidden states in chunks of rows, and leaves a chunk's numbers to an
arithmetic: plain torch on the CPU and for capped logits (``softmax``), else one pass in half precision on CUDA
(``ratios``, ``kernels``).
"""

from echorl_trainer.head.operator import Objective, token_logprobs, token_loss

__all__ = ["Objective", "token_logprobs", "token_loss"]
