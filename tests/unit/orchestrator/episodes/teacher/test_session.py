"""What the policy learns of an episode that a teacher played in several branches."""

from pathlib import Path

from echorl_core.config import SamplingConfig, SftConfig
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.endpoints.client import EndpointClient
from echorl_orchestrator.episodes.samples import Owner
from echorl_orchestrator.episodes.teacher.session import TeacherSession
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.fake_teacher import FakeTeacher, teaching
from echorl_testing.orchestrator.scripted_policy import ScriptedPolicy, write_byte_tokenizer


async def test_of_too_many_branches_the_first_ones_and_the_last_are_kept(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(write_byte_tokenizer(tmp_path / "model"), name="bytes")
    spec = SessionSpec(
        key="s",
        episode="e",
        codec=CompactCodec(tokenizer),
        generator=ScriptedPolicy(tokenizer, lambda _: ""),
        sampling=SamplingConfig(max_completion_tokens=20),
        max_model_len=200,
    )
    async with teaching(FakeTeacher(says=lambda messages: {"content": f"re {messages[0]['content']}"})) as teacher:
        client = EndpointClient(teacher.config())
        await client.start()
        session = TeacherSession(spec, client)
        for number in range(4):
            await session.turn([{"role": "user", "content": f"q{number}"}])
        await session.close()
        await client.close()
    built = session.taught(Owner("e", "g", "talks", 1, 1), SftConfig(), reward=1.0, max_branches=3)
    learned = [tokenizer.decode(one.token_ids[one.ce_weight != 0].tolist()) for one in built.samples]
    assert [text.removesuffix("<|im_end|>") for text in learned] == ["re q0", "re q1", "re q3"]
    assert built.dropped_branches == 1
