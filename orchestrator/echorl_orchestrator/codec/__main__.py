"""Whether a model's messages can be rendered: ``python -m echorl_orchestrator.codec FOLDER RENDERER``.

Exit code 0, or 2 with the reason on stderr, in the words of the role itself. The folder has the model's name.
"""

import sys

from echorl_core.config import ModelConfig
from echorl_core.names import ExitCode
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.failures import BadInputError


def main(folder: str, renderer: str) -> ExitCode:
    """Build the codec and drop it."""
    try:
        build_codec(ModelConfig(path=folder, dtype="float32", max_model_len=1, renderer=renderer))
    except BadInputError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.BAD_INPUT
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
