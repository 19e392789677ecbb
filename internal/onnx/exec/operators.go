package exec

import "math"

// operators is every operator that this package runs, by "Op" or "domain.Op".
// docs/onnx-operators.md lists them; a test keeps the two equal.
var operators map[string]builder

func init() { //nolint:gochecknoinits // breaks the initialisation cycle with subgraph compilation
	operators = map[string]builder{
		// arithmetic, element by element with broadcasting
		"Add": arithmetic(arithAdd), "Sub": arithmetic(arithSub), "Mul": arithmetic(arithMul), "Div": arithmetic(arithDiv),
		"Pow": arithmetic(arithPow), "Mod": buildMod,
		"Max": variadic(arithMax), "Min": variadic(arithMin), "Sum": variadic(arithAdd), "Mean": buildMean,
		"Equal": comparison(cmpEqual), "Greater": comparison(cmpGreater), "Less": comparison(cmpLess),
		"GreaterOrEqual": comparison(cmpGreaterEq), "LessOrEqual": comparison(cmpLessEq),
		"And": logical(func(a, b bool) bool { return a && b }), "Or": logical(func(a, b bool) bool { return a || b }),
		"Xor": logical(func(a, b bool) bool { return a != b }), "Not": buildNot,
		"Where": buildWhere,

		// functions of one element
		"Abs": unary(math.Abs), "Neg": unary(func(x float64) float64 { return -x }), "Sqrt": unary(math.Sqrt),
		"Reciprocal": unary(func(x float64) float64 { return 1 / x }),
		"Exp":        unary(math.Exp), "Log": unary(math.Log), "Floor": unary(math.Floor), "Ceil": unary(math.Ceil),
		"Round": unary(math.RoundToEven), "Sign": unary(sign), "Erf": unary(math.Erf),
		"Sin": unary(math.Sin), "Cos": unary(math.Cos), "Tan": unary(math.Tan), "Atan": unary(math.Atan),
		"Tanh": unary(math.Tanh), "Sigmoid": unary(sigmoid), "Softplus": unary(func(x float64) float64 { return math.Log1p(math.Exp(x)) }),
		"Softsign":  unary(func(x float64) float64 { return x / (1 + math.Abs(x)) }),
		"Relu":      unary(func(x float64) float64 { return max(x, 0) }),
		"LeakyRelu": buildLeakyRelu, "Elu": buildElu, "Selu": buildSelu, "HardSigmoid": buildHardSigmoid, "Gelu": buildGelu, "Clip": buildClip,
		"HardSwish": unary(func(x float64) float64 { return x * max(0, min(1, x/6+0.5)) }),
		"IsNaN":     buildIsNaN, "Cast": buildCast, "Identity": buildIdentity, "Dropout": buildIdentity,

		// shapes and selection
		"Shape": buildShape, "Size": buildSize, "Reshape": buildReshape, "Flatten": buildFlatten, "Squeeze": buildSqueeze,
		"Unsqueeze": buildUnsqueeze, "Transpose": buildTranspose, "Concat": buildConcat, "Split": buildSplit,
		"Slice": buildSlice, "Gather": buildGather, "GatherElements": buildGatherElements, "Expand": buildExpand,
		"GatherND": buildGatherND, "Tile": buildTile, "Constant": buildConstant, "ConstantOfShape": buildConstantOfShape, "Range": buildRange,
		"OneHot": buildOneHot, "NonZero": buildNonZero, "CumSum": buildCumSum,

		// sums, order and products
		"ReduceSum": reduction(reduceSum), "ReduceMean": reduction(reduceMean), "ReduceMax": reduction(reduceMax),
		"ReduceMin": reduction(reduceMin), "ReduceProd": reduction(reduceProd), "ReduceSumSquare": reduction(reduceSumSquare),
		"ReduceL1": reduction(reduceL1), "ReduceL2": reduction(reduceL2), "ReduceLogSumExp": reduction(reduceLogSumExp),
		"ArgMax": argument(true), "ArgMin": argument(false), "TopK": buildTopK,
		"MatMul": buildMatMul, "Gemm": buildGemm, "Softmax": softmax(false), "LogSoftmax": softmax(true),
		"LayerNormalization": buildLayerNormalization,

		// convolution and recurrence
		"Conv": buildConv, "MaxPool": pool(slideMax, false), "AveragePool": pool(slideAdd, false),
		"GlobalMaxPool": pool(slideMax, true), "GlobalAveragePool": pool(slideAdd, true),
		"BatchNormalization": buildBatchNormalization, "Pad": buildPad, "PRelu": buildPRelu,
		"RNN": recurrent(cellRNN), "GRU": recurrent(cellGRU), "LSTM": recurrent(cellLSTM),

		// ai.onnx.ml
		"ai.onnx.ml.TreeEnsembleClassifier": buildTreeClassifier, "ai.onnx.ml.TreeEnsembleRegressor": buildTreeRegressor,
		"ai.onnx.ml.LinearClassifier": buildLinearClassifier, "ai.onnx.ml.LinearRegressor": buildLinearRegressor,
		"ai.onnx.ml.SVMClassifier": buildSVMClassifier, "ai.onnx.ml.SVMRegressor": buildSVMRegressor,
		"ai.onnx.ml.Scaler": buildScaler, "ai.onnx.ml.Normalizer": buildNormalizer, "ai.onnx.ml.Imputer": buildImputer,
		"ai.onnx.ml.Binarizer": buildBinarizer, "ai.onnx.ml.OneHotEncoder": buildOneHotEncoder,
		"ai.onnx.ml.LabelEncoder": buildLabelEncoder, "ai.onnx.ml.CategoryMapper": buildCategoryMapper,
		"ai.onnx.ml.FeatureVectorizer": buildFeatureVectorizer, "ai.onnx.ml.ArrayFeatureExtractor": buildArrayFeatureExtractor,
		"ai.onnx.ml.ZipMap": buildIdentity,

		// text
		"StringNormalizer": buildStringNormalizer, "TfIdfVectorizer": buildTfIdfVectorizer,
		"com.microsoft.Tokenizer": buildTokenizer,
	}
}
