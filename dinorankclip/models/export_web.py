from pathlib import Path
def demand_runtime(x): pass
def write_web_folder(model, folder, export): return []
