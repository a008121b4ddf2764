"""Raw text -> documents, sentences and a token store on disk; and the corpus and tasks inside every interpreter."""

from .arguments import CorpusArguments, StoreArguments, TextArguments
from .builtin import BUILTIN_TASKS, builtin_classification, builtin_documents, builtin_questions
from .read.formats import Record
from .read.labelled import pair_passages, read_labelled, read_parallel, read_unlabelled
from .read.sources import find_files, read_records
from .read.text import Document, Text, open_text
from .store.build import prepare_corpus, prepare_store
from .store.encoding import split_sentences
from .store.token_store import TokenStore, open_store
