"""SPIR-V as data: numbers and operands of instructions, enumerants, and the instruction for each of TensorIR's operations.

The numbers come from the SPIR-V specification 1.5 and its extended instruction set GLSL.std.450.
"""

from __future__ import annotations

from typing import NamedTuple

MAGIC = 0x07230203
HEADER_WORDS = 5
VERSION = 0x00010500
"""SPIR-V 1.5, which every Vulkan 1.2 driver supports."""


class Scalar(NamedTuple):
    """A type of one lane, with TensorIR's name."""

    kind: str
    """``bool``, ``int``, ``uint`` or ``float``."""
    bits: int

    @property
    def name(self) -> str:
        """TensorIR's name."""
        return self.kind if self.kind == "bool" else f"{self.kind}{self.bits}"

    @property
    def is_narrow(self) -> bool:
        """Whether it is an integer that is computed in 32 bits."""
        return self.bits < 32 and self.kind in ("int", "uint")


BOOL = Scalar("bool", 8)
UINT = Scalar("uint", 32)
FLOAT = Scalar("float", 32)
SCALARS = {
    "bool": BOOL,
    **{f"{kind}{bits}": Scalar(kind, bits) for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": Scalar("float", bits) for bits in (16, 32, 64)},
}


# -- Instructions -------------------------------------------------------------------------------------------------


class Instruction(NamedTuple):
    """An opcode, and a letter for each operand.

    ``t`` result type, ``r`` result, ``i`` id, ``n`` number, ``s`` text, ``l`` the words of a constant, ``x`` an instruction of the
    extended set; a capital letter is a kind of enumerant, one of ``ENUMERANTS``. The last letter repeats if ``*`` follows it.
    """

    number: int
    operands: str = "tri*"


INSTRUCTIONS = {
    "Name": Instruction(5, "is"),
    "Extension": Instruction(10, "s"),
    "ExtInstImport": Instruction(11, "rs"),
    "ExtInst": Instruction(12, "trixi*"),
    "MemoryModel": Instruction(14, "AM"),
    "EntryPoint": Instruction(15, "Xisi*"),
    "ExecutionMode": Instruction(16, "iZn*"),
    "Capability": Instruction(17, "C"),
    "TypeVoid": Instruction(19, "r"),
    "TypeBool": Instruction(20, "r"),
    "TypeInt": Instruction(21, "rnn"),
    "TypeFloat": Instruction(22, "rn"),
    "TypeVector": Instruction(23, "rin"),
    "TypeArray": Instruction(28, "rii"),
    "TypeRuntimeArray": Instruction(29, "ri"),
    "TypeStruct": Instruction(30, "ri*"),
    "TypePointer": Instruction(32, "rBi"),
    "TypeFunction": Instruction(33, "ri*"),
    "ConstantTrue": Instruction(41, "tr"),
    "ConstantFalse": Instruction(42, "tr"),
    "Constant": Instruction(43, "trl"),
    "ConstantComposite": Instruction(44),
    "Function": Instruction(54, "trFi"),
    "FunctionEnd": Instruction(56, ""),
    "Variable": Instruction(59, "trB"),
    "Load": Instruction(61, "triOi*"),
    "Store": Instruction(62, "iiOi*"),
    "AccessChain": Instruction(65),
    "Decorate": Instruction(71, "iDn*"),
    "MemberDecorate": Instruction(72, "inDn*"),
    "CompositeConstruct": Instruction(80),
    "CompositeExtract": Instruction(81, "trin*"),
    "ConvertFToU": Instruction(109),
    "ConvertFToS": Instruction(110),
    "ConvertSToF": Instruction(111),
    "ConvertUToF": Instruction(112),
    "UConvert": Instruction(113),
    "SConvert": Instruction(114),
    "FConvert": Instruction(115),
    "Bitcast": Instruction(124),
    "FNegate": Instruction(127),
    "IAdd": Instruction(128),
    "FAdd": Instruction(129),
    "ISub": Instruction(130),
    "FSub": Instruction(131),
    "IMul": Instruction(132),
    "FMul": Instruction(133),
    "UDiv": Instruction(134),
    "SDiv": Instruction(135),
    "FDiv": Instruction(136),
    "UMod": Instruction(137),
    "UMulExtended": Instruction(151),
    "IsNan": Instruction(156),
    "IsInf": Instruction(157),
    "LogicalEqual": Instruction(164),
    "LogicalNotEqual": Instruction(165),
    "LogicalOr": Instruction(166),
    "LogicalAnd": Instruction(167),
    "LogicalNot": Instruction(168),
    "Select": Instruction(169),
    "IEqual": Instruction(170),
    "INotEqual": Instruction(171),
    "UGreaterThan": Instruction(172),
    "SGreaterThan": Instruction(173),
    "UGreaterThanEqual": Instruction(174),
    "SGreaterThanEqual": Instruction(175),
    "ULessThan": Instruction(176),
    "SLessThan": Instruction(177),
    "ULessThanEqual": Instruction(178),
    "SLessThanEqual": Instruction(179),
    "FOrdEqual": Instruction(180),
    "FOrdNotEqual": Instruction(182),
    "FUnordNotEqual": Instruction(183),
    "FOrdLessThan": Instruction(184),
    "FOrdGreaterThan": Instruction(186),
    "FOrdLessThanEqual": Instruction(188),
    "FOrdGreaterThanEqual": Instruction(190),
    "ShiftRightLogical": Instruction(194),
    "ShiftRightArithmetic": Instruction(195),
    "ShiftLeftLogical": Instruction(196),
    "BitwiseOr": Instruction(197),
    "BitwiseXor": Instruction(198),
    "BitwiseAnd": Instruction(199),
    "Not": Instruction(200),
    "BitFieldInsert": Instruction(201),
    "BitFieldSExtract": Instruction(202),
    "BitFieldUExtract": Instruction(203),
    "BitCount": Instruction(205),
    "ControlBarrier": Instruction(224, "iii"),
    "MemoryBarrier": Instruction(225, "ii"),
    "AtomicLoad": Instruction(227),
    "AtomicStore": Instruction(228, "iiii"),
    "AtomicExchange": Instruction(229),
    "AtomicCompareExchange": Instruction(230),
    "AtomicIAdd": Instruction(234),
    "AtomicISub": Instruction(235),
    "AtomicSMin": Instruction(236),
    "AtomicUMin": Instruction(237),
    "AtomicSMax": Instruction(238),
    "AtomicUMax": Instruction(239),
    "AtomicAnd": Instruction(240),
    "AtomicOr": Instruction(241),
    "AtomicXor": Instruction(242),
    "Phi": Instruction(245),
    "LoopMerge": Instruction(246, "iiL"),
    "SelectionMerge": Instruction(247, "iS"),
    "Label": Instruction(248, "r"),
    "Branch": Instruction(249, "i"),
    "BranchConditional": Instruction(250, "iii"),
    "Return": Instruction(253, ""),
    "Unreachable": Instruction(255, ""),
    "GroupNonUniformElect": Instruction(333),
    "GroupNonUniformAll": Instruction(334),
    "GroupNonUniformAny": Instruction(335),
    "GroupNonUniformBroadcast": Instruction(337),
    "GroupNonUniformBallot": Instruction(339),
    "GroupNonUniformShuffle": Instruction(345),
    "GroupNonUniformShuffleXor": Instruction(346),
    "GroupNonUniformShuffleUp": Instruction(347),
    "GroupNonUniformShuffleDown": Instruction(348),
    "GroupNonUniformIAdd": Instruction(349, "triGi"),
    "GroupNonUniformFAdd": Instruction(350, "triGi"),
    "GroupNonUniformSMin": Instruction(353, "triGi"),
    "GroupNonUniformUMin": Instruction(354, "triGi"),
    "GroupNonUniformFMin": Instruction(355, "triGi"),
    "GroupNonUniformSMax": Instruction(356, "triGi"),
    "GroupNonUniformUMax": Instruction(357, "triGi"),
    "GroupNonUniformFMax": Instruction(358, "triGi"),
    "TypeCooperativeMatrixKHR": Instruction(4456, "riiiii"),
    "CooperativeMatrixLoadKHR": Instruction(4457, "triiiOi*"),
    "CooperativeMatrixStoreKHR": Instruction(4458, "iiiiOi*"),
    "CooperativeMatrixMulAddKHR": Instruction(4459, "triiiQ"),
}
OPCODES = {name: instruction.number for name, instruction in INSTRUCTIONS.items()}

# -- Enumerants ---------------------------------------------------------------------------------------------------

ADDRESSING = {"Logical": 0}
MEMORY_MODEL = {"GLSL450": 1, "Vulkan": 3}
MEMORY_OPERANDS = {"MakePointerAvailable|NonPrivatePointer": 0x28, "MakePointerVisible|NonPrivatePointer": 0x30}
SIGNED = 0xF
"""Of a product of small matrices, all elements have signs."""
MATRIX_OPERANDS = {"|".join(f"Matrix{one}SignedComponentsKHR" for one in ("A", "B", "C", "Result")): SIGNED}
EXECUTION_MODEL = {"GLCompute": 5}
EXECUTION_MODE = {
    "LocalSize": 17,
    "DenormPreserve": 4459,
    "SignedZeroInfNanPreserve": 4461,
    "RoundingModeRTE": 4462,
}
STORAGE_CLASS = {"Input": 1, "Workgroup": 4, "Function": 7, "PushConstant": 9, "StorageBuffer": 12}
FUNCTION_CONTROL = {"None": 0}
SELECTION_CONTROL = {"None": 0}
LOOP_CONTROL = {"None": 0, "Unroll": 1, "DontUnroll": 2}
GROUP_OPERATION = {"Reduce": 0, "InclusiveScan": 1, "ExclusiveScan": 2}
DECORATION = {
    "Block": 2,
    "ArrayStride": 6,
    "BuiltIn": 11,
    "Restrict": 19,
    "Aliased": 20,
    "Coherent": 23,
    "NonWritable": 24,
    "NonReadable": 25,
    "Binding": 33,
    "DescriptorSet": 34,
    "Offset": 35,
    "FPRoundingMode": 39,
    "NoContraction": 42,
}
BUILTIN = {
    "WorkgroupId": 26,
    "LocalInvocationId": 27,
    "SubgroupSize": 36,
    "SubgroupId": 40,
    "SubgroupLocalInvocationId": 41,
}
CAPABILITY = {
    "Shader": 1,
    "Float16": 9,
    "Float64": 10,
    "Int64": 11,
    "Int64Atomics": 12,
    "Int16": 22,
    "Int8": 39,
    "GroupNonUniform": 61,
    "GroupNonUniformVote": 62,
    "GroupNonUniformArithmetic": 63,
    "GroupNonUniformBallot": 64,
    "GroupNonUniformShuffle": 65,
    "GroupNonUniformShuffleRelative": 66,
    "StorageBuffer16BitAccess": 4433,
    "StorageBuffer8BitAccess": 4448,
    "DenormPreserve": 4464,
    "SignedZeroInfNanPreserve": 4466,
    "RoundingModeRTE": 4467,
    "VulkanMemoryModel": 5345,
    "CooperativeMatrixKHR": 6022,
}
ENUMERANTS = {
    "A": ADDRESSING,
    "B": STORAGE_CLASS,
    "C": CAPABILITY,
    "D": DECORATION,
    "F": FUNCTION_CONTROL,
    "G": GROUP_OPERATION,
    "L": LOOP_CONTROL,
    "M": MEMORY_MODEL,
    "O": MEMORY_OPERANDS,
    "Q": MATRIX_OPERANDS,
    "S": SELECTION_CONTROL,
    "X": EXECUTION_MODEL,
    "Z": EXECUTION_MODE,
}
"""By the enumerant's letter among an instruction's operands."""

DEVICE, WORKGROUP, SUBGROUP = 1, 2, 3
"""Scopes."""
ROWS_FIRST, COLUMNS_FIRST = 0, 1
"""How matrices of a subgroup lie in memory."""
MATRIX_USES = {"a": 0, "b": 1, "sum": 2}
MATRIX_CALLS = ("matrix_fill", "matrix_load", "matrix_multiply", "matrix_add", "matrix_scale", "matrix_store")
"""The words of TensorIR for them."""
ACQUIRE, RELEASE, ACQUIRE_RELEASE = 0x2, 0x4, 0x8
UNIFORM_MEMORY, WORKGROUP_MEMORY = 0x40, 0x100
"""Bits of memory semantics."""

GLSL = {
    "RoundEven": 2,
    "Trunc": 3,
    "FAbs": 4,
    "Floor": 8,
    "Ceil": 9,
    "Sin": 13,
    "Cos": 14,
    "Tan": 15,
    "Asin": 16,
    "Acos": 17,
    "Atan": 18,
    "Sinh": 19,
    "Cosh": 20,
    "Tanh": 21,
    "Asinh": 22,
    "Acosh": 23,
    "Atanh": 24,
    "Atan2": 25,
    "Pow": 26,
    "Exp": 27,
    "Log": 28,
    "Exp2": 29,
    "Log2": 30,
    "Sqrt": 31,
    "InverseSqrt": 32,
    "Fma": 50,
    "PackHalf2x16": 58,
    "UnpackHalf2x16": 62,
    "FindUMsb": 75,
}
"""The extended instructions."""

# -- What TensorIR asks for -----------------------------------------------------------------------------------------

BINARY: dict[str, dict[str, str]] = {
    "Add": {"int": "IAdd", "uint": "IAdd", "float": "FAdd"},
    "Sub": {"int": "ISub", "uint": "ISub", "float": "FSub"},
    "Mul": {"int": "IMul", "uint": "IMul", "float": "FMul"},
    "Div": {"int": "SDiv", "uint": "UDiv", "float": "FDiv"},
    "BitwiseAnd": {"int": "BitwiseAnd", "uint": "BitwiseAnd", "bool": "LogicalAnd"},
    "BitwiseOr": {"int": "BitwiseOr", "uint": "BitwiseOr", "bool": "LogicalOr"},
    "BitwiseXor": {"int": "BitwiseXor", "uint": "BitwiseXor", "bool": "LogicalNotEqual"},
    "LShift": {"int": "ShiftLeftLogical", "uint": "ShiftLeftLogical"},
    "RShift": {"int": "ShiftRightArithmetic", "uint": "ShiftRightLogical"},
    "And": {"bool": "LogicalAnd"},
    "Or": {"bool": "LogicalOr"},
}
"""By node, then by kind of operand."""

# Ordered for `!=` too, as in TVM's LLVM code: every comparison with NaN is false.
COMPARE: dict[str, dict[str, str]] = {
    "EQ": {"int": "IEqual", "uint": "IEqual", "float": "FOrdEqual", "bool": "LogicalEqual"},
    "NE": {"int": "INotEqual", "uint": "INotEqual", "float": "FOrdNotEqual", "bool": "LogicalNotEqual"},
    "LT": {"int": "SLessThan", "uint": "ULessThan", "float": "FOrdLessThan"},
    "LE": {"int": "SLessThanEqual", "uint": "ULessThanEqual", "float": "FOrdLessThanEqual"},
    "GT": {"int": "SGreaterThan", "uint": "UGreaterThan", "float": "FOrdGreaterThan"},
    "GE": {"int": "SGreaterThanEqual", "uint": "UGreaterThanEqual", "float": "FOrdGreaterThanEqual"},
}

LEAVES_RANGE = {"IAdd", "ISub", "IMul", "ShiftLeftLogical", "Not"}
"""Instructions whose result may have more bits than a narrow integer."""

NO_CONTRACTION = {"FAdd", "FConvert", "FSub", "FMul", "FDiv"}
"""Instructions that a driver could fuse (FMA contraction), reorder or leave out, and must not.

Mesa 26 takes a conversion to fewer bits and back for the value itself, unless it may not be contracted.
"""

EXACT_MATH = {
    "ceil": "Ceil",
    "fabs": "FAbs",
    "floor": "Floor",
    "fma": "Fma",
    "nearbyint": "RoundEven",
    "rint": "RoundEven",
    "rsqrt": "InverseSqrt",
    "sqrt": "Sqrt",
    "trunc": "Trunc",
}
"""Float functions that GLSL.std.450 has for every width."""

MATH = {
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atan2": "Atan2",
    "atanh": "Atanh",
    "cos": "Cos",
    "cosh": "Cosh",
    "exp": "Exp",
    "exp2": "Exp2",
    "log": "Log",
    "log2": "Log2",
    "pow": "Pow",
    "sin": "Sin",
    "sinh": "Sinh",
    "tan": "Tan",
    "tanh": "Tanh",
}
"""Functions that it has for up to 32 bits: for 64 bits drivers return garbage without an error."""

SCALED_MATH = {
    "log10": ("log2", None, 0.30102999566398119521),
    "exp10": ("exp2", 3.3219280948873623479, None),
}
"""Functions computed by another: its name, and the factors for the argument and the result."""

ATOMICS: dict[str, dict[str, str]] = {
    "atomic_add": {"int": "AtomicIAdd", "uint": "AtomicIAdd"},
    "atomic_sub": {"int": "AtomicISub", "uint": "AtomicISub"},
    "atomic_min": {"int": "AtomicSMin", "uint": "AtomicUMin"},
    "atomic_max": {"int": "AtomicSMax", "uint": "AtomicUMax"},
    "atomic_and": {"int": "AtomicAnd", "uint": "AtomicAnd"},
    "atomic_or": {"int": "AtomicOr", "uint": "AtomicOr"},
    "atomic_xor": {"int": "AtomicXor", "uint": "AtomicXor"},
    "atomic_exchange": {"int": "AtomicExchange", "uint": "AtomicExchange"},
}
"""Functions ``name(address, value)`` that return the previous value."""

SUBGROUP_CAPABILITY = {
    "basic": "GroupNonUniform",
    "vote": "GroupNonUniformVote",
    "arithmetic": "GroupNonUniformArithmetic",
    "ballot": "GroupNonUniformBallot",
    "shuffle": "GroupNonUniformShuffle",
    "shuffle_relative": "GroupNonUniformShuffleRelative",
}
"""By the group's name in ``Capabilities.subgroup``."""

SUBGROUP_BUILTINS = {
    "subgroup_size": "SubgroupSize",
    "subgroup_lane": "SubgroupLocalInvocationId",
    "subgroup_index": "SubgroupId",
}

SUBGROUP_VOTES = {
    "subgroup_elect": ("basic", "GroupNonUniformElect"),
    "subgroup_any": ("vote", "GroupNonUniformAny"),
    "subgroup_all": ("vote", "GroupNonUniformAll"),
}
"""Their group of operations, and their instruction."""

SUBGROUP_ARITHMETIC: dict[str, tuple[str, dict[str, str]]] = {
    "subgroup_add": ("Reduce", {"int": "IAdd", "uint": "IAdd", "float": "FAdd"}),
    "subgroup_inclusive_add": ("InclusiveScan", {"int": "IAdd", "uint": "IAdd", "float": "FAdd"}),
    "subgroup_exclusive_add": ("ExclusiveScan", {"int": "IAdd", "uint": "IAdd", "float": "FAdd"}),
    "subgroup_min": ("Reduce", {"int": "SMin", "uint": "UMin", "float": "FMin"}),
    "subgroup_max": ("Reduce", {"int": "SMax", "uint": "UMax", "float": "FMax"}),
}
"""Group operation, and the instruction's name after ``GroupNonUniform``."""

SUBGROUP_SHUFFLES = {
    "subgroup_broadcast": ("ballot", "GroupNonUniformBroadcast"),
    "subgroup_shuffle": ("shuffle", "GroupNonUniformShuffle"),
    "subgroup_shuffle_xor": ("shuffle", "GroupNonUniformShuffleXor"),
    "subgroup_shuffle_up": ("shuffle_relative", "GroupNonUniformShuffleUp"),
    "subgroup_shuffle_down": ("shuffle_relative", "GroupNonUniformShuffleDown"),
}
"""Functions ``name(value, lane)``: their group of operations, and their instruction."""
