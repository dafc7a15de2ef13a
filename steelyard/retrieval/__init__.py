"""Training retrievers and recommenders over large catalogues, and asking them."""

from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.interactions import Interactions, Reading
from steelyard.retrieval.job import Trained, train
from steelyard.retrieval.loop import Step, Stopped
from steelyard.retrieval.mining import MiningRules, Negatives, mine_negatives
from steelyard.retrieval.mining_job import Collection, Mined, mine
from steelyard.retrieval.reading import read_interactions, read_test, read_texts
from steelyard.retrieval.retriever import Retriever
from steelyard.retrieval.splitting import split

__all__ = [
    "Collection",
    "Interactions",
    "Mined",
    "MiningRules",
    "Negatives",
    "Reading",
    "Retriever",
    "Step",
    "Stopped",
    "TrainConfig",
    "Trained",
    "mine",
    "mine_negatives",
    "read_interactions",
    "read_test",
    "read_texts",
    "split",
    "train",
]
