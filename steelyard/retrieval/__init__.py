"""Training retrievers and recommenders over large catalogues, and asking them."""

from steelyard.retrieval.auditing import ProposalAudit, Scene, audit_proposals
from steelyard.retrieval.auditing_job import Audited, audit
from steelyard.retrieval.collection import Collection
from steelyard.retrieval.comparing import Cell, Compared, compare
from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.interactions import Interactions, Reading
from steelyard.retrieval.job import Trained, train
from steelyard.retrieval.loop import Step, Stopped
from steelyard.retrieval.mining import MiningRules, Negatives, mine_negatives
from steelyard.retrieval.mining_job import MinedTable, mine
from steelyard.retrieval.reading import read_interactions, read_test, read_texts
from steelyard.retrieval.retriever import Retriever
from steelyard.retrieval.splitting import split

__all__ = [
    "Audited",
    "Cell",
    "Collection",
    "Compared",
    "Interactions",
    "MinedTable",
    "MiningRules",
    "Negatives",
    "ProposalAudit",
    "Reading",
    "Retriever",
    "Scene",
    "Step",
    "Stopped",
    "TrainConfig",
    "Trained",
    "audit",
    "audit_proposals",
    "compare",
    "mine",
    "mine_negatives",
    "read_interactions",
    "read_test",
    "read_texts",
    "split",
    "train",
]
