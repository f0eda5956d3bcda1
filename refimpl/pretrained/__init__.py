"""Pretrained models: loading, chat templates, tasks and scorers from other packages,
log-probs that read each prompt once, LoRA, and an estimate of the memory needed."""
