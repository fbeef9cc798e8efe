#include "workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPINS 4000 /* looks before a thread goes to sleep: tasks of one pass follow at once */
#define PIECES 4   /* parts for each thread: one that does not get a processor leaves its to others */

/* One word says how many threads a task is for, and how many of its parts nobody has begun: a thread
   that comes late from another task sees at once that this one is not its own. */
#define OPEN_TO(threads, parts) ((threads) << 16 | (parts))
#define THREADS(task) ((task) >> 16)
#define PARTS(task) ((task) & 0xffff)

struct Workers {
    int started;
    Task *task;
    void *what;
    int parts;
    atomic_int left; /* see OPEN_TO */
    atomic_int open; /* parts that are not done */
    atomic_int asleep, stopping;
    pthread_mutex_t lock;
    pthread_cond_t call;
    pthread_t thread[];
};

typedef struct {
    Workers *workers;
    int thread;
} Worker;

static int has_part(int left, int thread)
{
    return PARTS(left) > 0 && thread < THREADS(left);
}

/* Does parts until there are none. Who has begun one may read what it is part of: no other task is
   set before it is done. */
static void take_part(Workers *workers, int thread)
{
    int left = atomic_load_explicit(&workers->left, memory_order_acquire);
    while (has_part(left, thread)) {
        if (!atomic_compare_exchange_weak_explicit(&workers->left, &left, left - 1,
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        workers->task(workers->what, (Part){PARTS(left) - 1, workers->parts, thread});
        atomic_fetch_sub_explicit(&workers->open, 1, memory_order_release);
        left = atomic_load_explicit(&workers->left, memory_order_acquire);
    }
}

/* Whether there is something for a thread to do, or to end. */
static int news(Workers *workers, int thread)
{
    return atomic_load(&workers->stopping) || has_part(atomic_load(&workers->left), thread);
}

static void await(Workers *workers, int thread)
{
    for (int spin = 0; spin < SPINS; spin++) {
        if (news(workers, thread))
            return;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&workers->lock);
    atomic_fetch_add(&workers->asleep, 1);
    while (!news(workers, thread))
        pthread_cond_wait(&workers->call, &workers->lock);
    atomic_fetch_sub(&workers->asleep, 1);
    pthread_mutex_unlock(&workers->lock);
}

static void *work(void *argument)
{
    Worker me = *(Worker *)argument;
    free(argument);
    while (!atomic_load(&me.workers->stopping)) {
        take_part(me.workers, me.thread);
        await(me.workers, me.thread);
    }
    return NULL;
}

static void wake(Workers *workers)
{
    if (atomic_load(&workers->asleep)) {
        pthread_mutex_lock(&workers->lock);
        pthread_cond_broadcast(&workers->call);
        pthread_mutex_unlock(&workers->lock);
    }
}

Workers *workers_start(int threads)
{
    Workers *workers = calloc(1, sizeof *workers + (threads - 1) * sizeof(pthread_t));
    if (!workers)
        return NULL;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->call, NULL);
    for (int thread = 1; thread < threads; thread++) {
        Worker *worker = malloc(sizeof *worker);
        if (worker)
            *worker = (Worker){workers, thread};
        if (!worker || pthread_create(&workers->thread[thread - 1], NULL, work, worker)) {
            free(worker);
            workers_stop(workers);
            return NULL;
        }
        workers->started++;
    }
    return workers;
}

void workers_stop(Workers *workers)
{
    atomic_store(&workers->stopping, 1);
    wake(workers);
    for (int i = 0; i < workers->started; i++)
        pthread_join(workers->thread[i], NULL);
    pthread_cond_destroy(&workers->call);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}

void workers_run(Workers *workers, int threads, Task *task, void *what)
{
    workers_run_parts(workers, threads, threads == 1 ? 1 : threads * PIECES, task, what);
}

void workers_run_parts(Workers *workers, int threads, int parts, Task *task, void *what)
{
    if (parts == 1) {
        task(what, (Part){0, 1, 0});
        return;
    }
    workers->task = task;
    workers->what = what;
    workers->parts = parts;
    atomic_store(&workers->open, parts);
    atomic_store(&workers->left, OPEN_TO(threads, parts));
    wake(workers);
    take_part(workers, 0);
    for (int spin = 0; atomic_load_explicit(&workers->open, memory_order_acquire); spin++)
        if (spin < SPINS)
            __builtin_ia32_pause();
        else
            sched_yield(); /* a thread may wait for this one's processor */
}
