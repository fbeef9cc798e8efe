#include "workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SPINS 20000 /* looks before a thread goes to sleep: tasks of one pass follow at once */

struct Workers {
    int threads, started;
    Task *task; /* NULL: end */
    void *what;
    atomic_uint round;  /* tasks so far */
    atomic_int working; /* threads that have not done their part */
    atomic_int asleep;
    pthread_mutex_t lock;
    pthread_cond_t news;
    pthread_t thread[];
};

typedef struct {
    Workers *workers;
    int part;
} Worker;

static void await(Workers *workers, unsigned seen)
{
    for (int spin = 0; spin < SPINS; spin++) {
        if (atomic_load_explicit(&workers->round, memory_order_acquire) != seen)
            return;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&workers->lock);
    atomic_fetch_add(&workers->asleep, 1);
    while (atomic_load(&workers->round) == seen)
        pthread_cond_wait(&workers->news, &workers->lock);
    atomic_fetch_sub(&workers->asleep, 1);
    pthread_mutex_unlock(&workers->lock);
}

static void *work(void *argument)
{
    Worker me = *(Worker *)argument;
    free(argument);
    for (unsigned seen = 0;; seen++) {
        await(me.workers, seen);
        Task *task = me.workers->task;
        if (task)
            task(me.workers->what, me.part, me.workers->threads);
        atomic_fetch_sub_explicit(&me.workers->working, 1, memory_order_release);
        if (!task)
            return NULL;
    }
}

static void begin(Workers *workers, Task *task, void *what)
{
    workers->task = task;
    workers->what = what;
    atomic_store(&workers->working, workers->started);
    atomic_fetch_add(&workers->round, 1);
    if (atomic_load(&workers->asleep)) {
        pthread_mutex_lock(&workers->lock);
        pthread_cond_broadcast(&workers->news);
        pthread_mutex_unlock(&workers->lock);
    }
}

Workers *workers_start(int threads)
{
    Workers *workers = calloc(1, sizeof *workers + (threads - 1) * sizeof(pthread_t));
    if (!workers)
        return NULL;
    workers->threads = threads;
    pthread_mutex_init(&workers->lock, NULL);
    pthread_cond_init(&workers->news, NULL);
    for (int part = 1; part < threads; part++) {
        Worker *worker = malloc(sizeof *worker);
        if (worker)
            *worker = (Worker){workers, part};
        if (!worker || pthread_create(&workers->thread[part - 1], NULL, work, worker)) {
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
    begin(workers, NULL, NULL);
    for (int i = 0; i < workers->started; i++)
        pthread_join(workers->thread[i], NULL);
    pthread_cond_destroy(&workers->news);
    pthread_mutex_destroy(&workers->lock);
    free(workers);
}

void workers_run(Workers *workers, Task *task, void *what)
{
    if (workers->started) {
        begin(workers, task, what);
        task(what, 0, workers->threads);
        for (int spin = 0; atomic_load_explicit(&workers->working, memory_order_acquire); spin++)
            if (spin < SPINS)
                __builtin_ia32_pause();
            else
                sched_yield(); /* a thread may wait for this one's processor */
    } else {
        task(what, 0, 1);
    }
}
