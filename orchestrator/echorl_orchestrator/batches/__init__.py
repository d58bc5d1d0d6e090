"""From ready episodes to a sealed batch.

sealing         filters, weights, layout and digest: what a batch is, and its files
loss_weights    the weight of every token, and the denominators
packing         samples to micro-batches of equal load
batch_store     sealed batches on disk
batch_metrics   what a batch consists of, for the step's record
rae_baselines   RAE's running baselines, moved by what is shipped
"""
