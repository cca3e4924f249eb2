"""Unreft for the Trainer of Lightning: one callback, and it goes on where it was killed.

    trainer = lightning.pytorch.Trainer(callbacks=[unreft.lightning.Unreft()])
    trainer.fit(model, data)

Model, optimizer, schedulers and loss scaler are captured, the loops' counts, the position in the
data, the random generators, what is logged so far, and the state of callbacks and of metrics; a run
that was killed ends with the same bytes as one that was not. docs/lightning.md is the page about
it.
"""

from unreft.lightning.callback import Unreft

__all__ = ["Unreft"]
