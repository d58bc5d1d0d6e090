"""What all role configs share."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class RoleConfig(BaseModel):
    """Base of all role configs: strict about unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def load(cls, path: Path) -> "RoleConfig":
        """Read the config that ``dump`` wrote."""
        return cls.model_validate_json(path.read_text())

    def dump(self, path: Path) -> None:
        """Write the config as indented JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n")
