"""Evidence for the product: experiments on measured data, published methods compared with ours, and simulations for them.

Part of a clone, not of the wheel. The product imports nothing of it.
"""
