"""POST /predict: from a JSON body to arrays, one batched call of the model, and back.

Belongs to the event loop; the model runs in the batcher's threads. Never gives an order.
"""
