"""Which fold of a table is the test part, in a cross-validation."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Fold(BaseModel):
    """One fold of a table that is cut into several: it is the test part, and the others are trained on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    number: int = Field(ge=1)
    """Which of the folds, counted from 1."""
    of: int = Field(ge=2, le=255)
    """How many folds there are."""

    @model_validator(mode="after")
    def _is_one_of_them(self) -> Self:
        if self.number > self.of:
            raise ValueError(f"fold {self.number} of {self.of}; they are counted from 1 to {self.of}")
        return self

    def __str__(self) -> str:
        return f"fold {self.number} of {self.of}"
