/* The compiled `Contexts`, `Calibration` and `Predictor`, as Python sees them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "search.h"

enum { MEMO = 64 };

typedef struct {
    PyObject_HEAD
    long order;
    Counts counts;
} ContextsObject;

typedef struct {
    PyObject_HEAD
    Rates rates;
} CalibrationObject;

typedef struct {
    PyObject_HEAD
    Predictor predictor;
    PyObject *held[MOST_SOURCES + 1]; /* the sources, and the calibration */
    bool busy;
} PredictorObject;

/* Tables that were looked up in one search, and stay alive until its end. */
typedef struct {
    void *tables[MEMO];
    int32_t first[MEMO];
    PyObject *table[MEMO];
    bool failed;
} Memo;

static PyTypeObject ContextsType, CalibrationType, PredictorType;
static PyObject *table_name; /* of the method of sources that have a table for each first token */

/* Reads a token; false with an error set where it is none. */
static bool token_of(PyObject *object, int32_t *token)
{
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred())
        return false;
    if (value < INT32_MIN || value > INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "%ld is no token", value);
        return false;
    }
    *token = (int32_t)value;
    return true;
}

/* Reads `count` tokens of a list or tuple from `start` on. */
static bool tokens_of(PyObject *fast, Py_ssize_t start, Py_ssize_t count, int32_t *tokens)
{
    PyObject **items = PySequence_Fast_ITEMS(fast) + start;
    for (Py_ssize_t at = 0; at < count; at++)
        if (!token_of(items[at], tokens + at))
            return false;
    return true;
}

/* A list or tuple of these ids, to be released; the last `most` of them go to `tokens`. */
static PyObject *last_tokens(PyObject *ids, Py_ssize_t most, int32_t *tokens, Py_ssize_t *known)
{
    PyObject *fast = PySequence_Fast(ids, "ids must be a sequence");
    if (!fast)
        return NULL;
    Py_ssize_t size = PySequence_Fast_GET_SIZE(fast);
    *known = size < most ? size : most;
    if (!tokens_of(fast, size - *known, *known, tokens))
        Py_CLEAR(fast);
    return fast;
}

static bool expected_arguments(Py_ssize_t given, Py_ssize_t wanted)
{
    if (given != wanted)
        PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", wanted, given);
    return given == wanted;
}

static uint64_t key_of(const int32_t *tokens, Py_ssize_t count)
{
    uint64_t key = start_key;
    while (count--)
        key = further_back(key, tokens[count]);
    return key;
}

static PyObject *done(Counts *counts)
{
    bool failed = counts->failed;
    counts->failed = false;
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Contexts */

static PyObject *contexts_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)args, (void)keywords; /* a subclass has its own */
    ContextsObject *self = (ContextsObject *)type->tp_alloc(type, 0);
    if (self) {
        self->order = self->counts.most = 1;
        drop(&self->counts.young);
        drop(&self->counts.old);
    }
    return (PyObject *)self;
}

static int contexts_init(ContextsObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"order", "most", NULL};
    long order;
    Py_ssize_t most = 1 << 16;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "l|n", names, &order, &most))
        return -1;
    if (order < 1 || order > MOST_ORDER || most < 1) {
        PyErr_Format(PyExc_ValueError, "order must be 1 to %d and most at least 1", MOST_ORDER);
        return -1;
    }
    drop(&self->counts.young);
    drop(&self->counts.old);
    self->order = order;
    self->counts.most = most;
    return 0;
}

static void contexts_dealloc(ContextsObject *self)
{
    drop(&self->counts.young);
    drop(&self->counts.old);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static Py_ssize_t contexts_length(ContextsObject *self)
{
    return self->counts.young.live + self->counts.old.live;
}

/* Counts a token after each suffix of those before it. */
static void add_suffixes(ContextsObject *self, const int32_t *before, Py_ssize_t known,
                         int32_t token)
{
    uint64_t keys[MOST_ORDER + 1] = {start_key};
    for (Py_ssize_t length = 1; length <= known; length++)
        keys[length] = further_back(keys[length - 1], before[known - length]);
    for (Py_ssize_t length = known; length > 0; length--)
        add(&self->counts, keys[length], token, 1);
}

static PyObject *contexts_add(ContextsObject *self, PyObject *const *args, Py_ssize_t given)
{
    int32_t before[MOST_ORDER], token;
    Py_ssize_t known;
    if (!expected_arguments(given, 2) || !token_of(args[1], &token))
        return NULL;
    PyObject *fast = last_tokens(args[0], self->order, before, &known);
    if (!fast)
        return NULL;
    Py_DECREF(fast);
    add_suffixes(self, before, known, token);
    return done(&self->counts);
}

static PyObject *contexts_extend(ContextsObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (!expected_arguments(given, 2))
        return NULL;
    Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (start == -1 && PyErr_Occurred())
        return NULL;
    PyObject *fast = PySequence_Fast(args[0], "ids must be a sequence");
    if (!fast)
        return NULL;
    bool read = true;
    Py_ssize_t size = PySequence_Fast_GET_SIZE(fast);
    for (Py_ssize_t index = start > 1 ? start : 1; read && index < size; index++) {
        int32_t tokens[MOST_ORDER + 1];
        Py_ssize_t known = index < self->order ? index : self->order;
        read = tokens_of(fast, index - known, known + 1, tokens);
        if (read)
            add_suffixes(self, tokens, known, tokens[known]);
    }
    Py_DECREF(fast);
    return read ? done(&self->counts) : NULL;
}

static PyObject *contexts_add_ngram(ContextsObject *self, PyObject *const *args, Py_ssize_t given)
{
    int32_t tokens[MOST_ORDER + 1];
    Py_ssize_t count;
    if (!expected_arguments(given, 2))
        return NULL;
    double weight = PyFloat_AsDouble(args[1]);
    if (weight == -1 && PyErr_Occurred())
        return NULL;
    PyObject *fast = last_tokens(args[0], MOST_ORDER + 1, tokens, &count);
    if (!fast)
        return NULL;
    bool longer = count < PySequence_Fast_GET_SIZE(fast);
    Py_DECREF(fast);
    if (longer)
        return PyErr_Format(PyExc_ValueError, "an n-gram has at most %d tokens", MOST_ORDER + 1);
    for (Py_ssize_t end = 1; weight > 0 && !isinf(weight) && end < count; end++)
        add(&self->counts, key_of(tokens, end), tokens[end], weight);
    return done(&self->counts);
}

static PyObject *contexts_followers(ContextsObject *self, PyObject *context)
{
    int32_t tokens[MOST_ORDER];
    Py_ssize_t known;
    PyObject *fast = last_tokens(context, MOST_ORDER, tokens, &known);
    if (!fast)
        return NULL;
    bool longer = known < PySequence_Fast_GET_SIZE(fast);
    Py_DECREF(fast);
    Slot *slot = longer ? NULL : find(&self->counts, key_of(tokens, known));
    if (!slot)
        Py_RETURN_NONE;
    Follower followers[MOST_FOLLOWERS + 1];
    int count = copy(&self->counts.young, slot, followers);
    PyObject *out = PyDict_New();
    for (int at = 0; out && at < count; at++) {
        PyObject *token = PyLong_FromLong(followers[at].token);
        PyObject *weight = PyFloat_FromDouble(followers[at].count);
        if (!token || !weight || PyDict_SetItem(out, token, weight))
            Py_CLEAR(out);
        Py_XDECREF(token);
        Py_XDECREF(weight);
    }
    return out;
}

static PyMethodDef contexts_methods[] = {
    {"add", (PyCFunction)(void (*)(void))contexts_add, METH_FASTCALL, NULL},
    {"extend", (PyCFunction)(void (*)(void))contexts_extend, METH_FASTCALL, NULL},
    {"add_ngram", (PyCFunction)(void (*)(void))contexts_add_ngram, METH_FASTCALL, NULL},
    {"followers", (PyCFunction)contexts_followers, METH_O, NULL},
    {NULL},
};

static PyMemberDef contexts_members[] = {
    {"order", T_LONG, offsetof(ContextsObject, order), READONLY, NULL},
    {NULL},
};

static PySequenceMethods contexts_sequence = {.sq_length = (lenfunc)contexts_length};

static PyTypeObject ContextsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "common.ngrams._native.Contexts",
    .tp_doc = "See `common.ngrams.contexts.Contexts`.",
    .tp_basicsize = sizeof(ContextsObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = contexts_new,
    .tp_init = (initproc)contexts_init,
    .tp_dealloc = (destructor)contexts_dealloc,
    .tp_as_sequence = &contexts_sequence,
    .tp_methods = contexts_methods,
    .tp_members = contexts_members,
};

/* Calibration */

static PyTypeObject CalibrationType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "common.ngrams._native.Calibration",
    .tp_doc = "See `common.ngrams.calibration.Calibration`.",
    .tp_basicsize = sizeof(CalibrationObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
};

/* Predictor */

static void predictor_dealloc(PredictorObject *self)
{
    Predictor *predictor = &self->predictor;
    for (int at = 0; at <= MOST_SOURCES; at++)
        Py_XDECREF(self->held[at]);
    free(predictor->rows);
    free(predictor->seconds);
    free(predictor->candidates);
    free(predictor->contexts);
    free(predictor->heap);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static bool take_sources(PredictorObject *self, PyObject *sources)
{
    Predictor *predictor = &self->predictor;
    Py_ssize_t count = PySequence_Size(sources);
    if (count < 0 || count > MOST_SOURCES) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "at most %d sources", MOST_SOURCES);
        return false;
    }
    for (; predictor->sources < count; predictor->sources++) {
        PyObject *pair = PySequence_GetItem(sources, predictor->sources), *from;
        int origin;
        bool read = pair && PyArg_ParseTuple(pair, "iO", &origin, &from);
        if (read && (origin <= MATCH || origin >= ORIGINS)) {
            PyErr_Format(PyExc_ValueError, "an origin must be 1 to %d", ORIGINS - 1);
            read = false;
        }
        if (read) {
            bool own = PyObject_TypeCheck(from, &ContextsType);
            predictor->source[predictor->sources] =
                (Source){.origin = origin,
                         .counts = own ? &((ContextsObject *)from)->counts : NULL,
                         .tables = from};
            self->held[predictor->sources] = Py_NewRef(from);
        }
        Py_XDECREF(pair);
        if (!read)
            return false;
    }
    return true;
}

static bool take_steps(Predictor *predictor, PyObject *steps)
{
    Py_ssize_t entries = PySequence_Size(steps);
    if (entries < 2) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a table of steps has two entries at least");
        return false;
    }
    predictor->rows = malloc(entries * sizeof *predictor->rows);
    predictor->seconds = malloc(entries * sizeof *predictor->seconds);
    if (!predictor->rows || !predictor->seconds) {
        PyErr_NoMemory();
        return false;
    }
    for (; predictor->entries < entries; predictor->entries++) {
        PyObject *pair = PySequence_GetItem(steps, predictor->entries);
        bool read = pair && PyArg_ParseTuple(pair, "dd", predictor->rows + predictor->entries,
                                             predictor->seconds + predictor->entries);
        Py_XDECREF(pair);
        if (!read)
            return false;
    }
    return true;
}

static PyObject *predictor_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"sources", "order", "calibration", "steps", NULL};
    PyObject *sources, *steps;
    CalibrationObject *calibration;
    int order;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OiO!O", names, &sources, &order,
                                     &CalibrationType, &calibration, &steps))
        return NULL;
    if (order < 1 || order > MOST_ORDER)
        return PyErr_Format(PyExc_ValueError, "order must be 1 to %d", MOST_ORDER);
    PredictorObject *self = (PredictorObject *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->predictor.order = order;
    self->predictor.rates = &calibration->rates;
    self->held[MOST_SOURCES] = Py_NewRef((PyObject *)calibration);
    if (!take_sources(self, sources) || !take_steps(&self->predictor, steps))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* The table of a first token; once in a search it is asked for. */
static Counts *look_up(void *tables, int32_t first, void *with)
{
    Memo *memo = with;
    unsigned at = (uint32_t)first % MEMO;
    if (memo->failed)
        return NULL;
    if (!memo->table[at] || memo->first[at] != first || memo->tables[at] != tables) {
        PyObject *token = PyLong_FromLong(first);
        PyObject *table = token ? PyObject_CallMethodOneArg(tables, table_name, token) : NULL;
        Py_XDECREF(token);
        if (table && table != Py_None && !PyObject_TypeCheck(table, &ContextsType)) {
            PyErr_SetString(PyExc_TypeError, "a table must be Contexts or None");
            Py_CLEAR(table);
        }
        memo->failed = !table;
        memo->tables[at] = tables, memo->first[at] = first;
        Py_XSETREF(memo->table[at], table);
    }
    PyObject *table = memo->table[at];
    return table && table != Py_None ? &((ContextsObject *)table)->counts : NULL;
}

static PyObject *ints(const Candidate *candidates, int count, size_t offset)
{
    PyObject *list = PyList_New(count);
    for (int at = 0; list && at < count; at++) {
        int32_t value = *(const int32_t *)((const char *)(candidates + at) + offset);
        PyObject *item = PyLong_FromLong(value);
        if (item)
            PyList_SET_ITEM(list, at, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *chances(const Candidate *candidates, int count)
{
    PyObject *list = PyList_New(count);
    for (int at = 0; list && at < count; at++) {
        PyObject *item = PyFloat_FromDouble(candidates[at].chance);
        if (item)
            PyList_SET_ITEM(list, at, item);
        else
            Py_CLEAR(list);
    }
    return list;
}

/* Runs a search; returns how many candidates are worth checking, or -1 with an error set. */
static int run(PredictorObject *self, PyObject *ids, int most, double rows, double tokens,
               PyObject *line, long agreed)
{
    int32_t text[MOST_ORDER], *next = NULL;
    Py_ssize_t known, expected;
    Memo memo = {.failed = false};
    int worth = -1;
    PyObject *fast = last_tokens(ids, self->predictor.order, text, &known);
    PyObject *expectation = fast ? PySequence_Fast(line, "line must be a sequence") : NULL;
    if (!expectation)
        goto end;
    expected = PySequence_Fast_GET_SIZE(expectation);
    next = malloc((expected + 1) * sizeof *next);
    if (!next) {
        PyErr_NoMemory();
        goto end;
    }
    if (!tokens_of(expectation, 0, expected, next))
        goto end;
    self->busy = true;
    worth = search(&self->predictor, text, (int)known, most, rows, tokens, next, (int)expected,
                   agreed, look_up, &memo);
    self->busy = false;
    if (worth < 0)
        PyErr_NoMemory();
    if (memo.failed)
        worth = -1;
    for (int at = 0; at < MEMO; at++)
        Py_XDECREF(memo.table[at]);
end:
    free(next);
    Py_XDECREF(fast);
    Py_XDECREF(expectation);
    return worth;
}

static PyObject *predictor_search(PredictorObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"ids", "most", "others", "line", "agreed", NULL};
    PyObject *ids, *line = NULL, *none = NULL;
    int most;
    double rows = 0, tokens = 0;
    long agreed = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "Oi|(dd)Ol", names, &ids, &most, &rows,
                                     &tokens, &line, &agreed))
        return NULL;
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "a search is running");
        return NULL;
    }
    if (!line)
        line = none = PyTuple_New(0);
    int worth = line ? run(self, ids, most, rows, tokens, line, agreed) : -1;
    Py_XDECREF(none);
    if (worth < 0)
        return NULL;
    const Candidate *found = self->predictor.candidates;
    int count = self->predictor.found;
    return Py_BuildValue("(NNNi)", ints(found, count, offsetof(Candidate, token)),
                         ints(found, count, offsetof(Candidate, parent)), chances(found, count),
                         worth);
}

static PyObject *predictor_worth(PredictorObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"nodes", "most", "others", NULL};
    const Predictor *predictor = &self->predictor;
    int nodes, most;
    double rows = 0, tokens = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "ii|(dd)", names, &nodes, &most, &rows,
                                     &tokens))
        return NULL;
    Worth worth = worth_of(predictor, rows, tokens, nodes);
    for (int at = 0; at < predictor->found && at < most; at++)
        consider(&worth, predictor->candidates[at].chance);
    return PyLong_FromLong(worth.best);
}

static PyObject *predictor_learn(PredictorObject *self, PyObject *ids)
{
    PyObject *fast = PySequence_Fast(ids, "ids must be a sequence");
    if (!fast)
        return NULL;
    int at = NONE;
    Predictor *predictor = &self->predictor;
    for (Py_ssize_t place = 0; place < PySequence_Fast_GET_SIZE(fast); place++) {
        int32_t token;
        if (!token_of(PySequence_Fast_GET_ITEM(fast, place), &token))
            break;
        if (!place)
            test_doubts(predictor, token);
        at = test_below(predictor, at, token);
        if (at == NONE)
            break;
    }
    Py_DECREF(fast);
    if (PyErr_Occurred())
        return NULL;
    age(predictor);
    Py_RETURN_NONE;
}

static PyMethodDef predictor_methods[] = {
    {"search", (PyCFunction)(void (*)(void))predictor_search, METH_VARARGS | METH_KEYWORDS, NULL},
    {"worth", (PyCFunction)(void (*)(void))predictor_worth, METH_VARARGS | METH_KEYWORDS, NULL},
    {"learn", (PyCFunction)predictor_learn, METH_O, NULL},
    {NULL},
};

static PyTypeObject PredictorType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "common.ngrams._native.Predictor",
    .tp_doc = "See `common.ngrams.predictor.Predictor`.",
    .tp_basicsize = sizeof(PredictorObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = predictor_new,
    .tp_dealloc = (destructor)predictor_dealloc,
    .tp_methods = predictor_methods,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "common.ngrams._native",
    .m_doc = "N-grams, compiled; see `common.ngrams`.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyTypeObject *types[] = {&ContextsType, &CalibrationType, &PredictorType};
    PyObject *made = PyModule_Create(&module);
    PyObject *salt = PyUnicode_FromString(module.m_name);
    if (salt)
        start_key = (uint64_t)PyObject_Hash(salt) * 0x9E3779B97F4A7C15u;
    Py_XDECREF(salt);
    table_name = PyUnicode_InternFromString("table");
    if (!table_name)
        Py_CLEAR(made);
    for (int at = 0; made && at < 3; at++)
        if (PyModule_AddType(made, types[at]) < 0)
            Py_CLEAR(made);
    return made;
}
