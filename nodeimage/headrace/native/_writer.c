/* Threads that write to files and never need the interpreter lock. _writer.pyi describes the interface.

   A job is one call of pwritev2. `submit` pins the buffers and queues the job, a thread of the queue carries it out,
   and the completed job waits for `take`; an eventfd, which the caller's event loop watches, is readable while completed
   jobs wait. Between `submit` and `take` no Python object is touched: the threads use only file descriptors, addresses
   and lengths.

   Ownership: a `struct queue` belongs to all its threads and to the Python object, and is freed with the last of them.
   A job's buffers and token are released by `take` or `close`, on the calling thread. If the Python object is freed
   while jobs are in progress, these jobs are completed from buffers that are never released: memory leaks, but none is
   read after it was freed. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one library for Python 3.11 and all later ones */
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_BUFFERS 1024   /* IOV_MAX of Linux */
#define STACK_BYTES (1 << 20)

/* The function that writes. Returns the number of bytes written, or a negative errno. */
typedef ssize_t (*write_call)(int fd, const struct iovec *vectors, int count, int64_t offset, int flags);

struct job {
    struct job *next;
    int fd;
    int count;
    int flags;
    int64_t offset;
    ssize_t result;
    double seconds;
    PyObject *token;
    Py_buffer *held;
    struct iovec vectors[];
};

struct list {
    struct job *first;
    struct job **end;
};

struct queue {
    pthread_mutex_t lock; /* protects all following fields, except those that never change */
    pthread_cond_t more;  /* a job was queued, or the queue is closing */
    pthread_cond_t ended; /* a thread has ended */
    struct list todo;
    struct list done;
    int queued;  /* jobs in `todo` */
    int resting; /* threads that wait for `more` */
    int threads;
    int most_threads;
    int closing;
    int holders; /* the number of threads, plus one for the Python object */
    int event;
    pid_t process;
    write_call call;
};

typedef struct {
    PyObject_HEAD
    struct queue *queue; /* NULL: closed */
} WriterObject;

/* --- runs without the interpreter lock */

static void add(struct list *list, struct job *job)
{
    job->next = NULL;
    *list->end = job;
    list->end = &job->next;
}

static struct job *take_all(struct list *list)
{
    struct job *first = list->first;
    list->first = NULL;
    list->end = &list->first;
    return first;
}

static ssize_t write_file(int fd, const struct iovec *vectors, int count, int64_t offset, int flags)
{
    ssize_t written;
    do
        written = pwritev2(fd, vectors, count, offset, flags);
    while (written < 0 && errno == EINTR);
    return written < 0 ? -errno : written;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Gives up one reference to the queue. The caller holds `lock`, which is released. */
static void let_go(struct queue *queue)
{
    int left = --queue->holders;
    pthread_mutex_unlock(&queue->lock);
    if (left > 0)
        return;
    close(queue->event);
    pthread_cond_destroy(&queue->more);
    pthread_cond_destroy(&queue->ended);
    pthread_mutex_destroy(&queue->lock);
    free(queue);
}

static void *run(void *argument)
{
    struct queue *queue = argument;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (queue->todo.first == NULL && !queue->closing) {
            queue->resting++;
            pthread_cond_wait(&queue->more, &queue->lock);
            queue->resting--;
        }
        struct job *job = queue->todo.first;
        if (job == NULL)
            break;
        queue->todo.first = job->next;
        if (job->next == NULL)
            queue->todo.end = &queue->todo.first;
        queue->queued--;
        pthread_mutex_unlock(&queue->lock);

        double began = now();
        job->result = queue->call(job->fd, job->vectors, job->count, job->offset, job->flags);
        job->seconds = now() - began;

        pthread_mutex_lock(&queue->lock);
        int unheard = queue->done.first == NULL; /* else the event is already set for an earlier job */
        add(&queue->done, job);
        if (unheard) {
            uint64_t one = 1;
            ssize_t told = write(queue->event, &one, sizeof one); /* cannot block: `take` reads it before it is full */
            (void)told;
        }
    }
    queue->threads--;
    pthread_cond_broadcast(&queue->ended);
    let_go(queue);
    return NULL;
}

/* Starts one more thread. Returns 0 or an errno. The caller holds `lock`. */
static int start_thread(struct queue *queue)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all); /* signals are handled by Python's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, run, queue);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error == 0) {
        pthread_setname_np(thread, "log-write");
        queue->threads++;
        queue->holders++;
    }
    return error;
}

/* --- runs with the interpreter lock */

static void free_job(struct job *job)
{
    for (int i = 0; i < job->count; i++)
        PyBuffer_Release(&job->held[i]);
    Py_XDECREF(job->token);
    PyMem_Free(job);
}

static void free_jobs(struct job *job)
{
    while (job != NULL) {
        struct job *next = job->next;
        free_job(job);
        job = next;
    }
}

static struct queue *open_queue(WriterObject *self)
{
    if (self->queue == NULL)
        PyErr_SetString(PyExc_ValueError, "this writer is closed");
    return self->queue;
}

static int writer_init(PyObject *object, PyObject *arguments, PyObject *named)
{
    static char *names[] = {"threads", "call", NULL};
    WriterObject *self = (WriterObject *)object;
    int threads;
    unsigned long long call = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, named, "i|K", names, &threads, &call))
        return -1;
    if (threads < 1 || self->queue != NULL) {
        PyErr_SetString(PyExc_ValueError, "a writer is made once, with one thread or more");
        return -1;
    }
    struct queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    queue->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue->event < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        free(queue);
        return -1;
    }
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->more, NULL);
    pthread_cond_init(&queue->ended, NULL);
    queue->todo.end = &queue->todo.first;
    queue->done.end = &queue->done.first;
    queue->most_threads = threads;
    queue->process = getpid();
    queue->call = call == 0 ? write_file : (write_call)(uintptr_t)call;
    queue->holders = 1;
    pthread_mutex_lock(&queue->lock);
    int error = start_thread(queue);
    if (error != 0) {
        let_go(queue);
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    pthread_mutex_unlock(&queue->lock);
    self->queue = queue;
    return 0;
}

static PyObject *writer_fileno(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct queue *queue = open_queue((WriterObject *)object);
    return queue == NULL ? NULL : PyLong_FromLong(queue->event);
}

static PyObject *writer_submit(PyObject *object, PyObject *arguments)
{
    int fd, flags;
    long long offset;
    PyObject *buffers, *token;
    if (!PyArg_ParseTuple(arguments, "iOLiO", &fd, &buffers, &offset, &flags, &token))
        return NULL;
    struct queue *queue = open_queue((WriterObject *)object);
    if (queue == NULL)
        return NULL;
    Py_ssize_t count = PySequence_Size(buffers);
    if (count < 0)
        return NULL;
    if (count > MAX_BUFFERS)
        return PyErr_Format(PyExc_ValueError, "%zd buffers are more than one call takes", count);
    size_t size = sizeof(struct job) + (size_t)count * (sizeof(struct iovec) + sizeof(Py_buffer));
    struct job *job = PyMem_Malloc(size);
    if (job == NULL)
        return PyErr_NoMemory();
    job->fd = fd;
    job->count = 0;
    job->flags = flags;
    job->offset = offset;
    job->token = NULL;
    job->held = (Py_buffer *)&job->vectors[count];
    for (; job->count < count; job->count++) {
        PyObject *buffer = PySequence_GetItem(buffers, job->count);
        int failed = buffer == NULL || PyObject_GetBuffer(buffer, &job->held[job->count], PyBUF_SIMPLE) < 0;
        Py_XDECREF(buffer); /* the Py_buffer holds a reference */
        if (failed) {
            free_job(job);
            return NULL;
        }
        job->vectors[job->count].iov_base = job->held[job->count].buf;
        job->vectors[job->count].iov_len = (size_t)job->held[job->count].len;
    }
    Py_INCREF(token);
    job->token = token;

    pthread_mutex_lock(&queue->lock);
    add(&queue->todo, job);
    queue->queued++;
    if (queue->queued > queue->resting && queue->threads < queue->most_threads)
        start_thread(queue); /* on failure the existing threads do the job */
    pthread_cond_signal(&queue->more);
    pthread_mutex_unlock(&queue->lock);
    Py_RETURN_NONE;
}

static PyObject *writer_take(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct queue *queue = open_queue((WriterObject *)object);
    PyObject *taken = queue == NULL ? NULL : PyList_New(0);
    if (taken == NULL)
        return NULL;
    uint64_t times;
    ssize_t told = read(queue->event, &times, sizeof times); /* first: jobs completed from now on set the event again */
    (void)told;
    pthread_mutex_lock(&queue->lock);
    struct job *job = take_all(&queue->done);
    pthread_mutex_unlock(&queue->lock);
    while (job != NULL) {
        struct job *next = job->next;
        PyObject *outcome = Py_BuildValue("(Ond)", job->token, (Py_ssize_t)job->result, job->seconds);
        int failed = outcome == NULL || PyList_Append(taken, outcome) < 0;
        Py_XDECREF(outcome);
        free_job(job);
        job = next;
        if (failed) { /* out of memory: the results of the remaining jobs are lost */
            free_jobs(job);
            Py_DECREF(taken);
            return NULL;
        }
    }
    return taken;
}

static PyObject *writer_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    WriterObject *self = (WriterObject *)object;
    struct queue *queue = self->queue;
    self->queue = NULL;
    if (queue == NULL)
        Py_RETURN_NONE;
    struct job *done;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&queue->lock);
    queue->closing = 1;
    pthread_cond_broadcast(&queue->more);
    while (queue->threads > 0)
        pthread_cond_wait(&queue->ended, &queue->lock);
    done = take_all(&queue->done);
    let_go(queue);
    Py_END_ALLOW_THREADS
    free_jobs(done);
    Py_RETURN_NONE;
}

static void writer_dealloc(PyObject *object)
{
    WriterObject *self = (WriterObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    struct queue *queue = self->queue;
    if (queue != NULL && queue->process == getpid()) { /* a forked child has no threads, and the lock may be stuck */
        pthread_mutex_lock(&queue->lock);
        queue->closing = 1;
        pthread_cond_broadcast(&queue->more);
        let_go(queue);
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef writer_methods[] = {
    {"fileno", writer_fileno, METH_NOARGS, NULL},
    {"submit", writer_submit, METH_VARARGS, NULL},
    {"take", writer_take, METH_NOARGS, NULL},
    {"close", writer_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot writer_slots[] = {
    {Py_tp_init, writer_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, writer_methods},
    {0, NULL},
};

static PyType_Spec writer_spec = {
    .name = "headrace.native._writer.Writer",
    .basicsize = sizeof(WriterObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = writer_slots,
};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &writer_spec, NULL);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
    {0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "headrace.native._writer",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__writer(void)
{
    return PyModuleDef_Init(&module);
}
