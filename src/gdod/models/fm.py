"""Products of vectors of ids, as in factorisation machines (Rendle, "Factorization Machines", ICDM 2010)."""

from torch import Tensor


def pairwise_products(vectors: Tensor) -> Tensor:
    """Return the sum of the products of all pairs of vectors, element by element: [B, F, d] -> [B, d].

    It is Σ_{i<j} v_i ∘ v_j = ½ ((Σ v)² − Σ v²) (Rendle's lemma 3.1), which takes as long as reading the vectors. A
    factorisation machine adds up its d numbers; here the layers that follow weigh them, as in the neural form of He and
    Chua ("Neural Factorization Machines for Sparse Predictive Analytics", SIGIR 2017, equation 4).
    """
    total = vectors.sum(1)  # [B, d]
    return 0.5 * (total * total - (vectors * vectors).sum(1))
