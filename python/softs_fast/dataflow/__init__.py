"""Flows of rows through functions of models: a master that knows no tensor, and roles that compute."""
