"""Raw text -> documents, sentences and a token store on disk; and the corpus and tasks inside every interpreter."""

from .arguments import CorpusArguments, StoreArguments, TextArguments
from .build import prepare_store
from .builtin import builtin_documents
from .builtin_tasks import builtin_classification, builtin_questions
from .formats import Record
from .labelled import read_labelled, read_parallel
from .prepare import prepare_corpus
from .sentences import split_sentences
from .sources import find_files, read_records
from .store import TokenStore, open_store
from .text import Document, Text, open_text

__all__ = [
    "CorpusArguments",
    "Document",
    "Record",
    "StoreArguments",
    "Text",
    "TextArguments",
    "TokenStore",
    "builtin_classification",
    "builtin_documents",
    "builtin_questions",
    "find_files",
    "open_store",
    "open_text",
    "prepare_corpus",
    "prepare_store",
    "read_labelled",
    "read_parallel",
    "read_records",
    "split_sentences",
]
