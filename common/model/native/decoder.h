/* A causal language model of Llama's shape, its cache and a batch, as `model.py` lays them out.

   The structures stand in `structures.py` a second time, field by field. */

#ifndef PACELINE_DECODER_H
#define PACELINE_DECODER_H

#include <stdint.h>

#include "draw.h"
#include "number.h"
#include "workers.h"

/* A matrix [out, in], packed in blocks of 64 outputs, the last one padded. A block is cut in slices
   of its outputs, one after another, and a slice has:

   Of bfloat16: for each pair of inputs, those two weights of every output; `in` is even. They may
   be squeezed, see `squeezed.h`, where the decoder has tiles. Of int8: for each four inputs their
   four weights; each output has a scale, and the sum of its weights. Of float32, in a decoder of its
   own: for each input its weight of every output. */
typedef struct {
    const void *packed;
    const float *bias;   /* [out], or NULL */
    const float *scales; /* [out]; NULL where the weights are not int8 */
    const int32_t *sums; /* [out]; the same */
    const int32_t *stray_starts; /* [slabs + 1]: where those of each slab begin; NULL where weights
                                    are not squeezed */
    const uint32_t *strays; /* a place in a slab, and in the lower half the bits of its weight */
    int64_t out, in;
    int64_t exponent; /* of squeezed weights, with a lower half of 0 */
} Product;

/* Norms, [hidden], of experts that read a row by themselves beside what all rows take; what both
   make is added up, and a layer's norms are of the latter and of the sum. All NULL elsewhere. */
typedef struct {
    const float *router, *experts;           /* of what these read */
    const float *experts_post, *shared_post; /* of what experts make, and what the others do */
} MixtureNorms;

/* Feed-forward parts of which a row takes a few, by their scores. */
typedef struct {
    Product router;                /* scores, [count]; one more where what all rows take, beside
                                      these, is weighed by its sigmoid; */
    int64_t router_parts;          /* as many times as that: they are added up */
    const float *favours;          /* [count], added to scores when some are chosen; or NULL */
    const Product *gate_up, *down; /* [count] */
    int64_t count, chosen;         /* how many, of which a row takes so many */
    int64_t sigmoid;               /* whether scores are taken one by one; else they are chances */
    int64_t summed;                /* whether weights of those chosen add up to 1 */
    float scale;                   /* by which these weights are multiplied */
    const float *factors;          /* [count], by which each expert's are, too; or NULL */
    MixtureNorms norms;
} Experts;

typedef struct {
    Product qkv, out, gate_up, down; /* the latter two, beside experts, of what all rows take of
                                        them; without outputs where there is nothing of the kind */
    Product latent, kv;  /* where attention is latent: what its latents are made by, those of queries
                            first, and what keys and values are, `qkv` then being of queries alone;
                            without outputs elsewhere */
    const float *q_latent_norm;  /* [q_latent]; or NULL */
    const float *kv_latent_norm; /* [kv_normed] */
    int64_t q_latent;            /* of queries; 0: these are made of what attention reads */
    int64_t kv_normed;           /* of keys and values, so many; those after them are not normed */
    float latent_epsilon;        /* of these norms */
    const float *attention_norm, *mlp_norm;           /* [hidden], of what they read; or NULL */
    const float *attention_post_norm, *mlp_post_norm; /* [hidden], of what they add; or NULL */
    const float *q_norm, *k_norm;                     /* [size], or of all heads; or NULL */
    const float *sinks;     /* [heads]: scores of which nothing comes; or NULL. They are not yet
                               scaled, but where scores are capped */
    const float *cos, *sin; /* [positions, size / 2]: both halves of a head are turned alike */
    int64_t kv_heads, size; /* heads of keys and values, and numbers of any head */
    Number *cache;          /* [slots, kv_heads, 2 * size]: keys beside values */
    int64_t shares;         /* whether these are an earlier layer's: it makes none */
    const Experts *experts; /* or NULL */
    int64_t window;         /* keys a row sees, itself included; 0: all */
    Product per_layer_gate; /* where layers read embeddings of their own beside rows: makes of a row
                               what gates them */
    Product per_layer_out;  /* and what is added to the row */
    const float *per_layer_post_norm; /* [hidden], of that */
    float scale;                      /* what rows that leave it are multiplied by */
} Layer;

#define LAYER_PRODUCTS 8

/* The products of a layer beside those of experts; some may have no outputs. */
static inline void products_of(const Layer *layer, const Product *products[LAYER_PRODUCTS])
{
    const Product *all[] = {&layer->latent, &layer->qkv,     &layer->kv,
                            &layer->out,    &layer->gate_up, &layer->down,
                            &layer->per_layer_gate, &layer->per_layer_out};
    for (int i = 0; i < LAYER_PRODUCTS; i++)
        products[i] = all[i];
}

/* Numbers of a slot of a layer's cache. */
static inline long slot_size(const Layer *layer)
{
    return layer->kv_heads * 2 * layer->size;
}

/* How one half of what a first product makes gates the other. */
typedef struct {
    int64_t curve;          /* by which it is bent, see `gate.h` */
    float steepness, limit; /* of clamped ones */
} Gate;

typedef struct {
    int64_t hidden, heads, inner, layers;
    int64_t vocab, positions, slots; /* how many there are */
    Gate gate;
    int64_t whole_norms;  /* whether queries, and keys, are normed over all heads at once */
    int64_t norms_values; /* whether the values of each head are normed, by no weight */
    float epsilon, scale;
    float softcap, head_softcap; /* scores, once they are scaled, and logits become these times the
                                    tanh of what they are of them; 0: they stay what they are */
    const float *growth;      /* [positions]: what queries are multiplied by; or NULL */
    const Number *embeddings; /* [V, hidden] */
    const int64_t *read_as;   /* [V]: the id whose embeddings an id has; or NULL */
    const float *norm;        /* [hidden] */
    Product head;
    const Layer *layer;
    const float *token_norm; /* [hidden], of a drafting head: what its rows begin with is given, or
                                made of what they are shown, and its layer reads the normed
                                embeddings of their ids beside it; NULL but there */
    const float *given_norm; /* [hidden], of a head whose rows begin with the norm of that; or
                                NULL */
    Product shown;           /* of a head: what it makes of what rows are shown */
    const int64_t *tapped; /* [taps], rising: layers whose inputs are features of a row; as many as
                              there are is for its state, normed */
    int64_t taps;
    float embedding_scale, feature_scale; /* by which these are multiplied */
    int64_t per_layer_size;                   /* what each layer reads beside rows; 0: nothing */
    const Number *per_layer_embeddings;       /* [V, layers * per_layer_size] */
    Product per_layer_product;                /* makes of a row as it begins what they are added to */
    const float *per_layer_norm;              /* [per_layer_size], of that for each layer */
    float per_layer_scale, per_layer_epsilon; /* by which embeddings are multiplied; of the norm */
} Model;

/* A run is rows of one path, at one position after another. The slots of its keys, by position, are
   those of a table and then those of its tail; each row's own is among them. */
typedef struct {
    int64_t rows, wanted_rows, runs;
    int64_t large;                /* whether more threads are worth it */
    const int64_t *ids;           /* [rows] */
    const int64_t *ordered;       /* [rows]: rows by run, and by position within one */
    const int64_t *starts;        /* [runs + 1]: of runs, among those */
    const int64_t *positions;     /* [runs]: of their first rows */
    const int64_t *const *tables; /* [runs] */
    const int64_t *lengths;       /* [runs]: of the tables, as far as they count */
    const int64_t *tails;         /* [runs + 1]: where tails begin in what follows */
    const int64_t *behind;        /* [tails[runs]] */
    const int64_t *wanted;        /* [wanted_rows]: rows, no more than there are */
    float *logits;                /* [wanted_rows, V] */
    Number *states;               /* [wanted_rows, hidden] */
    Number *features;             /* [rows, taps * hidden]; or NULL, where nobody wants them */
    const Number *shown;          /* [rows, in]: what rows of a drafting head are shown; or NULL */
    const float *given;           /* [rows, hidden]: then, what they begin with */
    float *left;                  /* [wanted_rows, hidden]: what they end with; NULL but there */
    const Drawing *drawings;      /* [wanted_rows], of the tokens after them; NULL: all are those
                                     with the largest logits */
    int64_t *chosen;              /* [wanted_rows]: these tokens, -1 where a draw is not sure; or
                                     NULL, where nobody wants to know */
} Batch;

/* What a caller wants computed: the first four numbers of a batch, then its arrays up to `wanted`,
   tables as addresses, and room for `chosen`. One array, for each address costs a caller more
   than a few numbers do. */
typedef struct {
    int64_t *words;
    float *logits;
    Number *states;
    Number *features;
    const Number *shown;
    const float *given;
    float *left;
    const Drawing *drawings;
} Request;

/* What calls return; 0 where all is well. */
enum { OUT_OF_MEMORY = 1, OUT_OF_RANGE = 2 };

/* Threads, and room for what a pass holds; one thread uses it. */
typedef struct Decoder Decoder;

/* Whether this processor has what all below needs. */
int decoder_supported(void);

/* Whether it has tiles as well (AMX), and this process may use them. */
int decoder_has_tiles(void);

/* Outputs of a slice of a packed matrix. */
int decoder_slice(void);

/* A decoder with so many threads for a pass, the caller's among them, and for a large one; with
   products by tiles, if they are there and wanted, on processors that share a cache of so many
   bytes. NULL where that fails. */
Decoder *decoder_open(int threads, int most_threads, int tiled, int64_t shared_cache);

void decoder_close(Decoder *decoder);

/* The batch of a request. */
Batch batch_of(const Request *request);

/* The slot of a position of a run. */
int64_t slot_of(const Batch *batch, long run, long position);

/* How many slots the tail of a run has. */
long tail_of(const Batch *batch, long run);

/* Runs a batch: fills the cache, the logits, the states and, where there is room, the features and
   `chosen`. */
int run_batch(Decoder *decoder, const Model *model, const Batch *batch);

/* Threads that a batch is worth. */
int threads_of(const Decoder *decoder, const Batch *batch);

/* A batch, all of which is in range, as parts that need nothing of each other, one for each of its
   threads, or as it is; returns how many. They hold until the next batch is cut.

   parts: [threads_of]. */
long parts_of(Decoder *decoder, const Model *model, const Batch *batch, Batch *parts);

/* Runs a batch in the calling thread, which is the only one with that number. */
int run_alone(Decoder *decoder, const Model *model, const Batch *batch, int thread);

/* Does the parts of a task, each in a thread of its own. */
void run_each(Decoder *decoder, long count, Task *task, void *what);

/* Whether a batch is one that can be run. */
int in_range(const Model *model, const Batch *batch);

/* Runs a request; see above. */
int decoder_run(Decoder *decoder, const Model *model, const Request *request);

/* When a row of a roll has gone far enough: where it is too unlikely that all of it is right.

   How likely a token is right is told by how far the second best score is behind its own. */
typedef struct {
    int64_t ranges, longest;
    const float *bounds;   /* [ranges - 1], rising: of how far behind */
    const float *chances;  /* [W, ranges] */
    const float *least;    /* [W, longest], the last also of further tokens: a row ends before the
                              one with which all chances multiply to less */
    const int64_t *tokens; /* [W]: so many that count are there already; -1: the next does not */
    const float *right;    /* [W]: what their chances multiply to */
} Ends;

/* When texts are over, of which each row of a roll is the end. */
typedef struct {
    const int64_t *tokens; /* [W]: after so many, 1 at least */
    const int64_t *stops;  /* [starts[W]]: and after any of these of the row's */
    const int64_t *starts; /* [W + 1] */
} Limits;

/* How far a drafting head goes on: as long as another token is worth its time.

   A row's chance is that all of its tokens are right. It ends where that is too little, or with as
   many tokens as it may have; all end where the chances of those that would go on add up to no more
   than the price of another level, and so much for each of them, of all chances so far, one of each
   row's before its first token included. */
typedef struct {
    const int64_t *ids;      /* the target's, of the tokens that the head can guess; NULL where these
                                are all */
    const float *factors;    /* [W, longest]: what a token's chance is multiplied by, by level */
    const float *prices;     /* [longest]: of another level */
    const float *row_prices; /* [longest]: and of each row of it */
    const int64_t *tokens;   /* [W]: that a row may have */
    int64_t longest;         /* levels and one, at least */
    float least;             /* chance of a row that goes on */
} Guessing;

/* How the tokens of a roll are chosen, and how long it goes on. */
typedef struct {
    const Drawing *drawings; /* [W], of the token after each wanted row; those without a temperature
                                are followed by the largest logit, as all are where this is NULL */
    const Ends *ends;        /* or NULL */
    const Limits *limits;    /* or NULL */
    const Guessing *guessing; /* of a drafting head; or NULL */
    int64_t best;            /* tokens to tell of; two at least beside drawings or ends */
    int64_t news;            /* a descriptor to stop for where something can be read; or -1 */
} Rolling;

/* Runs a request, and then up to `levels` more batches: every wanted row is followed by the token
   with the best score, until it ends or its text is over. A row ends, too, where a draw is not sure;
   if that is its first token, its logits are those of the request.

   slots: [levels, W], where the keys of the tokens go; chosen: [levels + 1, W, best], the ids of
   the best scores, -1 where a row had ended or no more survive; behind: the same shape, by how much
   each score is less than the best, or where a head guesses how likely each token is, the row's
   others being right; levels: in, how many; out, how many of them were run. */
int decoder_roll(Decoder *decoder, const Model *model, const Request *request, const Rolling *how,
                 const int64_t *slots, int64_t *chosen, float *behind, long *levels);

/* The likeliest tokens of rows of logits, the likeliest first, and the chance of each.

   logits: [rows, size]; ids, chances: [rows, best]. */
void decoder_top(const float *logits, long rows, long size, long best, int64_t *ids,
                 float *chances);

/* Copies what the cache holds between slots, in all layers; all are read first. */
int decoder_move(Decoder *decoder, const Model *model, long count, const int64_t *from,
                 const int64_t *to);

/* y = W x + b, for each of some matrices of one shape with rows of its own.

   x: [count, rows, in]; y: [count, rows, out]. */
int decoder_multiply(Decoder *decoder, const Product *products, long count, long rows,
                     const Number *x, float *y);

/* Medusa's heads; see `common/model/medusa/heads.py`. */
typedef struct {
    const Product *first;    /* the first blocks of all heads */
    const Product *blocks;   /* [later, count] */
    const Product *output;   /* [count], or one that all share */
    const Number *vectors;   /* [tokens, size]; NULL where heads do not see the chosen token */
    const float *factors;    /* [tokens]: what vectors are multiplied by */
    int64_t count, later, size, tokens, shared;
} Heads;

/* The logits of all heads at some states, in the light of the tokens chosen from them.

   states: [rows, size]; chosen: [rows]; logits: [count, rows, out]. */
int decoder_guess(Decoder *decoder, const Heads *heads, long rows, const Number *states,
                  const int64_t *chosen, float *logits);

#endif
