// What a block of K rows costs in llama.cpp: one llama_decode of K tokens of one sequence, the logits of all of them wanted, behind a
// context. Widths take turns; a width is timed IN_A_ROW times after one pass that is not, so that what llama.cpp keeps of a graph is of use.
//
//     peer_cost MODEL THREADS CONTEXT REPEAT POSITIONS WIDTH...
//
// Prints one JSON object: seconds of every pass by width.

#include "ggml-cpu.h"
#include "llama.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

static const int IN_A_ROW = 3;

static void fail(const std::string & what) {
    fprintf(stderr, "peer_cost: %s\n", what.c_str());
    exit(1);
}

static int number(const char * text) {
    char * end = nullptr;
    const long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 1 || value > 1000000) {
        fail(std::string("a number from 1 to 1000000 expected, found ") + text);
    }
    return (int) value;
}

static void quiet(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

// Tokens first.. of a fixed meaningless text at positions first..
static double pass(llama_context * context, llama_batch & batch, int vocab, int first, int rows, bool all) {
    batch.n_tokens = rows;
    for (int i = 0; i < rows; i++) {
        batch.token[i]     = (llama_token) ((first + i) * 7919LL % vocab);
        batch.pos[i]       = first + i;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = all || i + 1 == rows;
    }
    const auto began = std::chrono::steady_clock::now();
    if (llama_decode(context, batch) != 0) {
        fail("llama_decode of " + std::to_string(rows) + " rows failed");
    }
    llama_synchronize(context);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    if (llama_get_logits_ith(context, rows - 1) == nullptr || (all && llama_get_logits_ith(context, 0) == nullptr)) {
        fail("logits that were wanted are missing");
    }
    return seconds.count();
}

int main(int argc, char ** argv) {
    if (argc < 7) {
        fail("MODEL THREADS CONTEXT REPEAT POSITIONS WIDTH... expected");
    }
    const int threads = number(argv[2]), depth = number(argv[3]), repeat = number(argv[4]), positions = number(argv[5]);
    std::vector<int> widths;
    int widest = depth;
    for (int i = 6; i < argc; i++) {
        widths.push_back(number(argv[i]));
        widest = widths.back() > widest ? widths.back() : widest;
    }
    llama_log_set(quiet, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (model == nullptr) {
        fail(std::string("cannot load ") + argv[1]);
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = positions;
    params.n_batch         = 2048;
    params.n_ubatch        = 512;
    params.n_threads       = threads;
    params.n_threads_batch = threads;
    llama_context * context = llama_init_from_model(model, params);
    if (context == nullptr) {
        fail("cannot make a context");
    }
    // Without a pool of its own every pass would start threads. Polling is llama-bench's default.
    ggml_threadpool_params pool_params = ggml_threadpool_params_default(threads);
    ggml_threadpool * pool = ggml_threadpool_new(&pool_params);
    llama_attach_threadpool(context, pool, pool);

    const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_batch batch = llama_batch_init(widest, 0, 1);
    pass(context, batch, vocab, 0, depth, false);
    std::vector<std::vector<double>> seconds(widths.size());
    for (int round = 0; round < repeat; round++) {
        for (size_t w = 0; w < widths.size(); w++) {
            for (int turn = 0; turn <= IN_A_ROW; turn++) {
                if (!llama_memory_seq_rm(llama_get_memory(context), 0, depth, -1)) {
                    fail("rows cannot be taken back");
                }
                const double took = pass(context, batch, vocab, depth, widths[w], true);
                if (turn > 0) {
                    seconds[w].push_back(took);
                }
            }
        }
    }
    char about[256];
    llama_model_desc(model, about, sizeof(about));
    printf("{\"model\": \"%s\", \"model_bytes\": %llu, \"threads\": %d, \"verify\": [", about,
           (unsigned long long) llama_model_size(model), threads);
    for (size_t w = 0; w < widths.size(); w++) {
        printf("%s{\"context\": %d, \"rows\": %d, \"seconds\": [", w > 0 ? ", " : "", depth, widths[w]);
        for (size_t i = 0; i < seconds[w].size(); i++) {
            printf("%s%.9f", i > 0 ? ", " : "", seconds[w][i]);
        }
        printf("]}");
    }
    printf("]}\n");
    llama_batch_free(batch);
    llama_free(context);
    ggml_threadpool_free(pool);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
