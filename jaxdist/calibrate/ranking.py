"""Rankings: whether predictions put what was measured in the right order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from jaxdist.calibrate.score import ScoredRow


@dataclass(frozen=True, kw_only=True)
class RankingAccuracy:
    """Rows that were measured against each other, and predicted in an order."""

    contests: int
    """Sets of rows that are ranked."""
    right: int
    """Of them those in which every pair is in order."""
    pairs: int
    """Pairs of rows with unlike measurements."""
    pairs_right: int
    """Of them those that are predicted in the order that was measured."""

    @property
    def accuracy(self) -> float:
        """Return the share of pairs in order."""
        return self.pairs_right / self.pairs


def score_rankings(rows: Sequence[ScoredRow]) -> RankingAccuracy | None:
    """Rank rows within their contests; None where no two are in one.

    Two that are predicted alike are not in order.
    """
    names = dict.fromkeys(
        one.row.ranking_group for one in rows if one.row.ranking_group
    )
    told = [
        _ordered_pairs([one for one in rows if one.row.ranking_group == name])
        for name in names
    ]
    told = [pairs for pairs in told if pairs]
    if not told:
        return None
    return RankingAccuracy(
        contests=len(told),
        right=sum(all(pairs) for pairs in told),
        pairs=sum(len(pairs) for pairs in told),
        pairs_right=sum(sum(pairs) for pairs in told),
    )


def _ordered_pairs(rows: Sequence[ScoredRow]) -> list[bool]:
    """Tell of each pair with unlike measurements whether it is in order."""
    return [
        (a.row.measured - b.row.measured) * (a.predicted - b.predicted) > 0
        for a, b in combinations(rows, 2)
        if a.row.measured != b.row.measured
    ]
