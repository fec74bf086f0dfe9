"""array_api_compat, SciPy and scikit-learn with tracegrad's Tensors, against the same calls with NumPy's arrays.

Run by tests/array_api/test_array_api.py (test_libraries) in a process with SCIPY_ARRAY_API=1. What these functions are is what their
libraries document as working with any array API namespace; nothing in them knows tracegrad.
"""

from __future__ import annotations

import array_api_compat
import numpy as np
import pytest
import sklearn
from scipy import cluster, differentiate, integrate, ndimage, optimize, signal, special, stats
from scipy.optimize import elementwise
from scipy.spatial.transform import Rotation
from sklearn import metrics
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.preprocessing import KernelCenterer, MinMaxScaler, PolynomialFeatures, StandardScaler

import tracegrad as tg
import tracegrad.array_api as xp

rng = np.random.default_rng(0)
ROWS, VECTOR, POSITIVE = rng.normal(size=(33, 4)), rng.normal(size=65), rng.gamma(2.0, size=65)


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch):
    """Small untraced work is done by numpy, as it is outside the tests."""
    monkeypatch.setattr(tg.config, "eager", True)


def compare(found, wanted, tolerance):
    """found is Tensors where wanted is arrays, of the same dtypes and values, in the same containers."""
    if isinstance(wanted, (tuple, list)):
        for a, b in zip(found, wanted, strict=True):
            compare(a, b, tolerance)
    else:
        assert isinstance(found, tg.Tensor)
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def check(function, *arrays, tolerance=1e-9):
    given = [tg.tensor(a) if isinstance(a, np.ndarray) else a for a in arrays]
    compare(function(*given), function(*arrays), tolerance)


# -------------------------------------------------------------------------------------------------------------- array_api_compat


def test_array_api_compat():
    x = tg.tensor(ROWS)
    assert array_api_compat.is_array_api_obj(x)
    assert array_api_compat.array_namespace(x, tg.ones(3), 1.0) is xp
    assert array_api_compat.device(x) is x.device
    assert array_api_compat.to_device(x, "numpy").device is tg.device("numpy")
    assert array_api_compat.size(x) == ROWS.size
    assert array_api_compat.is_writeable_array(x)
    assert not array_api_compat.is_lazy_array(x)
    with pytest.raises(TypeError, match="Multiple namespaces"):
        array_api_compat.array_namespace(x, ROWS)


# ------------------------------------------------------------------------------------------------------------------------ SciPy


def of(x):
    return array_api_compat.array_namespace(x)


SCIPY = {
    "special.logsumexp": (lambda x: special.logsumexp(x, axis=1), ROWS),
    "special.softmax": (lambda x: special.softmax(x, axis=1), ROWS),
    "special.log_softmax": (special.log_softmax, VECTOR),
    "special.gammaln": (special.gammaln, POSITIVE),
    "special.xlogy": (special.xlogy, POSITIVE, POSITIVE),
    "stats.describe": (lambda x: tuple(stats.describe(x))[2:], VECTOR),
    "stats.zscore": (stats.zscore, ROWS),
    "stats.moment": (lambda x: stats.moment(x, 3), VECTOR),
    "stats.gmean": (stats.gmean, POSITIVE),
    "stats.entropy": (stats.entropy, POSITIVE),
    "stats.ttest_ind": (lambda x, y: tuple(stats.ttest_ind(x, y)), VECTOR, VECTOR * 1.3 + 0.1),
    "stats.pearsonr": (lambda x, y: tuple(stats.pearsonr(x, y)), VECTOR, POSITIVE),
    "stats.normaltest": (lambda x: tuple(stats.normaltest(x)), VECTOR),
    "stats.bartlett": (lambda x, y: tuple(stats.bartlett(x, y)), VECTOR, POSITIVE),
    "stats.rankdata": (lambda x: of(x).astype(stats.rankdata(x), of(x).float64), np.round(VECTOR, 1)),      # of the default float dtype
    "stats.quantile": (stats.quantile, VECTOR, np.array([0.1, 0.5])),
    "cluster.vq.whiten": (cluster.vq.whiten, ROWS),
    "cluster.vq.vq": (lambda x, y: cluster.vq.vq(x, y)[1], ROWS, ROWS[:3]),
    "cluster.vq.kmeans": (lambda x: cluster.vq.kmeans(x, x[:3, :])[0], ROWS),
    "ndimage.gaussian_filter": (lambda x: ndimage.gaussian_filter(x, 1.0), ROWS),
    "signal.fftconvolve": (signal.fftconvolve, VECTOR, POSITIVE),
    "signal.detrend": (signal.detrend, VECTOR),
    "signal.savgol_filter": (lambda x: signal.savgol_filter(x, 5, 2), VECTOR),
    "integrate.trapezoid": (integrate.trapezoid, VECTOR),
    "integrate.cumulative_trapezoid": (integrate.cumulative_trapezoid, ROWS),
    "integrate.tanhsinh": (
        lambda a: integrate.tanhsinh(lambda z, a: of(z).exp(-z * a), a * 0.0, a * 0.0 + 1.0, args=(a,)).integral, POSITIVE),
    "integrate.cubature": (lambda a, b: integrate.cubature(lambda z: z[:, 0] ** 2, a, b).estimate, np.array([0.0]), np.array([1.0])),
    "differentiate.derivative": (lambda x: differentiate.derivative(of(x).exp, x).df, VECTOR),
    "optimize.rosen_der": (optimize.rosen_der, VECTOR),
    "optimize.elementwise.find_root": (
        lambda a: elementwise.find_root(lambda z, a: z**3 - a, (a * 0.0, a * 0.0 + 9.0), args=(a,)).x, POSITIVE),
    "spatial.transform.Rotation": (lambda q: Rotation.from_quat(q).as_matrix(), ROWS),
}


@pytest.mark.parametrize("name", SCIPY)
def test_scipy(name):
    function, *arrays = SCIPY[name]
    check(function, *arrays)


def test_scipy_keeps_gradients():
    """logsumexp is made of the namespace's functions, so it is differentiable; its gradient is softmax."""
    x = tg.tensor(ROWS, requires_grad=True)
    special.logsumexp(x, axis=1).sum().backward()
    np.testing.assert_allclose(x.grad, special.softmax(ROWS, axis=1), rtol=1e-9)


# ----------------------------------------------------------------------------------------------------------------- scikit-learn


FEATURES = rng.normal(size=(100, 6))
CLASSES = (FEATURES[:, 0] + 0.5 * FEATURES[:, 1] > 0).astype(np.int64)
TARGET = FEATURES @ rng.normal(size=6) + 0.1 * rng.normal(size=100)
ESTIMATORS = {
    "LinearDiscriminantAnalysis": (LinearDiscriminantAnalysis(solver="svd"), CLASSES, "coef_ transform predict decision_function"),
    "PCA": (PCA(3, svd_solver="full"), None, "components_ explained_variance_ transform"),
    "PCA, randomized": (PCA(3, svd_solver="randomized", power_iteration_normalizer="QR", random_state=0), None, "transform"),
    "Ridge": (Ridge(solver="svd"), TARGET, "coef_ predict"),
    "GaussianNB": (GaussianNB(), CLASSES, "theta_ predict predict_proba"),
    "GaussianMixture": (GaussianMixture(2, init_params="random", random_state=0), None, "means_ predict"),
    "KernelCenterer": (KernelCenterer(), None, "transform"),
    "StandardScaler": (StandardScaler(), None, "mean_ scale_ transform inverse_transform"),
    "MinMaxScaler": (MinMaxScaler(), None, "data_min_ transform"),
    "PolynomialFeatures": (PolynomialFeatures(), None, "transform"),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scikit_learn(name):
    estimator, target, results = ESTIMATORS[name]
    data = FEATURES @ FEATURES.T if name == "KernelCenterer" else FEATURES
    on_arrays = clone(estimator).fit(data, target)
    with sklearn.config_context(array_api_dispatch=True):
        on_tensors = clone(estimator).fit(tg.tensor(data), None if target is None else tg.tensor(target))
        for result in results.split():
            wanted, found = getattr(on_arrays, result), getattr(on_tensors, result)
            if callable(wanted):
                wanted, found = wanted(data), found(tg.tensor(data))
            compare(found, wanted, 1e-7)


def test_scikit_learns_metrics_and_model_selection():
    with sklearn.config_context(array_api_dispatch=True):
        wrong = 1 - CLASSES[:10]
        assert metrics.accuracy_score(tg.tensor(CLASSES[:10]), tg.tensor(wrong)) == 0.0
        assert metrics.r2_score(tg.tensor(TARGET), tg.tensor(TARGET * 0.9)) == pytest.approx(metrics.r2_score(TARGET, TARGET * 0.9))
        found = cross_val_score(Ridge(solver="svd"), tg.tensor(FEATURES), tg.tensor(TARGET))
    np.testing.assert_allclose(found, cross_val_score(Ridge(solver="svd"), FEATURES, TARGET), rtol=1e-9)
