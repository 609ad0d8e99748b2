"""The process of a parameter server: HTTP on uvicorn, the model and its optimizer, files, TLS."""
