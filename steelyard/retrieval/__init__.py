"""Training retrievers and recommenders over large catalogues, and asking them."""

from steelyard.retrieval.config import TrainConfig
from steelyard.retrieval.interactions import Interactions, Reading
from steelyard.retrieval.job import Trained, train
from steelyard.retrieval.loop import Step, Stopped
from steelyard.retrieval.reading import read_interactions, read_test
from steelyard.retrieval.retriever import Retriever
from steelyard.retrieval.splitting import split

__all__ = [
    "Interactions",
    "Reading",
    "Retriever",
    "Step",
    "Stopped",
    "TrainConfig",
    "Trained",
    "read_interactions",
    "read_test",
    "split",
    "train",
]
