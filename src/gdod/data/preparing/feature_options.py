"""How the columns of a table become the inputs of a model, besides what the schema says."""

from pydantic import BaseModel, ConfigDict, Field


class FeatureOptions(BaseModel):
    """What is made of the columns for a strong model. Without any of it: ids, and numbers brought to scale 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    statistics: bool = True
    """Whether categorical columns get target statistics: see `gdod.data.preparing.target_statistics`."""
    rows_per_value: int = Field(default=500, ge=1)
    """Only columns whose values have fewer training rows than this on average get statistics, and only pairs with such
    a column. From more rows an id vector learns as much, and the statistics' small differences between folds would
    tell a row's own label."""
    sequences: bool = True
    """Whether sequence columns get them, too: the means of those of a row's values."""
    repeated_numbers: bool = True
    """Whether numeric columns get them, too, where training rows with the very same number say much more about a row's
    labels than those with a similar one: see `gdod.data.preparing.number_values`."""
    pairs: int = Field(default=60, ge=0)
    """How many pairs of categorical columns get them, too, at most; 0: none. If there are more, those that explain
    most beyond the better of their columns, in up to 50,000 training rows."""
    columns: int = Field(default=128, ge=1)
    """How many numbers the statistics of an example may be in all; pairs that gain least are left out first."""
    noise: bool = False
    """Whether columns and pairs have statistics even where these explain nothing of the labels of other training rows,
    and so would only give a model something to learn by heart."""
    prior: float = Field(default=10.0, gt=0)
    """How many rows the rate of all rows counts for in the statistics of each value."""
    folds: int = Field(default=10, ge=2, le=64)
    """Into how many folds the training rows are cut, so that none sees its own label."""
    keys: int = Field(default=1_000_000, ge=1)
    """Different values of a column or pair above which they share buckets; fewer if all statistics together
    would take too much memory."""
    bins: int = Field(default=64, ge=0)
    """Most bins of the piecewise-linear encoding of a number, each with 250 training rows or more; 0: numbers stay as
    they are, statistics as well."""
    statistic_bins: int = Field(default=4, ge=0)
    """Most bins of a target statistic; 0: statistics stay as they are."""
    rare: int = Field(default=20, ge=1)
    """Values with fewer training rows than this share one id vector, unless the schema says otherwise."""
    times: bool = True
    """Whether columns of dates and times, and the one that a split by time goes by, give hour, weekday, month and the
    age of the row: see `gdod.data.preparing.time_fields`."""
    missing_flags: bool = True
    """Whether a numeric column with missing values in the training part gets a second number that says where they
    are."""
