"""What ``GET /v1/models`` says: bodies that clients of OpenAI's and of Anthropic's API read alike."""

from typing import Any

from echorl_core.names import SERVED_MODEL_NAME
from echorl_orchestrator.gateway.dialect import Refusal


def model_list() -> dict[str, Any]:
    """The policy under its served name, the only model there is. Requests may call it what they like."""
    name, released = SERVED_MODEL_NAME, "1970-01-01T00:00:00Z"
    openai = {"object": "model", "created": 0, "owned_by": "echorl"}
    anthropic = {"type": "model", "display_name": name, "created_at": released, "lifecycle": "active"}
    page = {"has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": [{"id": name, **openai, **anthropic}], **page}


def models_refused(refusal: Refusal) -> dict[str, Any]:
    """An error object of both."""
    error = {"type": "invalid_request_error", "message": refusal.message, "param": None, "code": refusal.reason}
    return {"type": "error", "error": error}
