"""A trained model in the form that other programs take, compared with the model before it is called done."""

from .formats import ExportArguments, export_model
