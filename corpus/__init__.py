"""Raw text -> documents, sentences and a token store on disk; and the corpus and tasks inside every interpreter."""

from .arguments import CorpusArguments, StoreArguments
from .builtin import builtin_documents
from .builtin_tasks import builtin_classification, builtin_questions
from .errors import CorpusError, StorageError
from .sentences import split_sentences
from .sources import Record, find_files, read_documents, read_records
from .store import TokenStore, build_store, corpus_fingerprint, open_store

__all__ = [
    "CorpusArguments",
    "CorpusError",
    "Record",
    "StorageError",
    "StoreArguments",
    "TokenStore",
    "build_store",
    "builtin_classification",
    "builtin_documents",
    "builtin_questions",
    "corpus_fingerprint",
    "find_files",
    "open_store",
    "read_documents",
    "read_records",
    "split_sentences",
]
